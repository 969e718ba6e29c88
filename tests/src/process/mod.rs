//! The daemon and the command line as real processes.

mod address;
mod binary;
mod bytes;
mod daemon;
mod eventually;
mod host;
mod management;
mod mounted;
mod open_metrics;
mod pipe;
mod run;
mod seccomp;
mod set_when_dropped;
mod vitals;

pub use address::{free_address, loopback_address, roce_port_is_free};
pub use binary::binary;
pub use bytes::Bytes;
pub use daemon::{Daemon, DaemonOptions, Ended, write_configuration};
pub use eventually::{eventually, pause};
pub use host::{empty_slice, host, slice_of};
pub use management::ManagementClient;
pub use mounted::{MountedFiles, fuse_is_missing};
pub use open_metrics::{OpenMetricsPage, metrics_text};
pub use run::{Outcome, Program, Running, feedrail, wait_at_most};
pub use set_when_dropped::SetWhenDropped;
pub use vitals::Vitals;
