//! Integration tests, in one program.

mod allocation;
mod bounds;
mod panics;
mod scripted;
mod served;
mod served_plans;
mod threads;
mod two_hosts;
