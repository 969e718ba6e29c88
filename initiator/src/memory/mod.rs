//! Memory that targets may access: registered regions, their pages, and bounce buffers.

pub(crate) mod bounce;
pub(crate) mod interval_set;
pub(crate) mod pages;
pub(crate) mod plan_region;
pub(crate) mod region;
