//! Hosts and targets on a simulated network, in virtual time.

mod faultless;
mod loss;
mod network;
mod outages;
mod past;
mod shared_storage;
mod storm;
