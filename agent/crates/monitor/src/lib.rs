#![forbid(unsafe_code)]
//! To come.
