//! The only place where the agent uses `unsafe`: system calls and machine instructions without a safe wrapper. Every other crate
//! forbids it. This crate makes decisions for no caller; it only makes calls safe.

pub mod account;
pub mod affinity;
pub mod bpf;
pub mod chase;
pub mod child;
pub mod datagrams;
pub mod memory;
pub mod namespace;
pub mod network;
pub mod non_temporal;
pub mod page_cache;
pub mod priority;
pub mod process;
pub mod processor;
pub mod registers;
pub mod ring;
pub mod shared;
pub mod socket;
pub mod syscall;
pub mod timekeeping;
