//! Peers that break every rule, beside well-behaved ones.

mod host_figures;
mod hosts;
mod target_figures;
mod targets;
