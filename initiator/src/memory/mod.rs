//! Memory that a target may reach: registered regions, their pages, and the pool that unregistered
//! memory is copied through.

pub(crate) mod bounce;
pub(crate) mod interval_set;
pub(crate) mod pages;
pub(crate) mod plan_region;
pub(crate) mod region;
