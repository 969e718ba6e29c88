//! The public interface: hosts, controllers, namespaces, batches of byte ranges, and their
//! results.

pub(crate) mod batch;
pub(crate) mod controller;
pub(crate) mod controller_handle;
pub(crate) mod discovery;
pub(crate) mod followed_paths;
pub(crate) mod host;
pub(crate) mod host_builder;
pub(crate) mod in_order;
pub(crate) mod multipath;
pub(crate) mod namespace;
pub(crate) mod namespace_paths;
pub(crate) mod path;
pub(crate) mod path_set;
pub(crate) mod pending;
pub(crate) mod plan;
pub(crate) mod ring;
pub(crate) mod shards;
pub(crate) mod submit;
pub(crate) mod subsystem_paths;
pub(crate) mod ticket;
