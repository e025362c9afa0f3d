//! Admin commands, one file each, and what they have in common.

pub mod error_log;
pub mod features;
