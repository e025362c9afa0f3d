//! What reactors, the control plane and the operator send each other.

pub mod key_value;
pub mod message;
pub mod state;
pub mod trace;
