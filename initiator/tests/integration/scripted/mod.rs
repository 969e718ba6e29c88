//! The initiator against a target that follows a script: first a good one, then ever worse ones.

mod fake;
mod fake_auth;
mod world;

mod addresses;
mod ana;
mod authentication;
mod basics;
mod busy;
mod changes;
mod chaos;
mod hostile;
mod multipath;
mod plans;
mod range_lists;
mod replicas;
mod waiting;
mod write_plans;
