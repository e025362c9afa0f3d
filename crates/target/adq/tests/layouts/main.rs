//! Layouts on a model of the kernel: planned by each driver's rules, applied, verified, removed; faults at every step.

mod faults;
mod model;
mod plans;
