//! Both roles of DH-HMAC-CHAP against each other, against vectors of independent code, and against wrong messages.

mod any_bytes;
mod combinations;
mod concatenation;
mod exchange;
mod golden;
mod host_refuses;
mod order;
mod refused;
