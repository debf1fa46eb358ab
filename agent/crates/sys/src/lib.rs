//! The one place where Partywall's agent uses `unsafe`: system calls and machine instructions that have no
//! safe wrapper. Every other crate forbids it. What is here decides nothing; it only makes a call safe.

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
pub mod ring;
pub mod shared;
pub mod syscall;
pub mod timekeeping;
pub mod view;
