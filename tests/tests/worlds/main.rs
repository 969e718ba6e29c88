//! Hosts and targets on a simulated network, in virtual time.

mod chaos_run;
mod faultless;
mod loss;
mod network;
mod outages;
mod past;
mod shared_storage;
