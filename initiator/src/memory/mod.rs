//! Memory that a target may reach: registered regions, their pages, and the pool that unregistered
//! memory is copied through.

pub(crate) mod bounce;
pub(crate) mod pages;
pub(crate) mod region;
