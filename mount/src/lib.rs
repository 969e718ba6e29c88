//! Namespaces of NVMe over Fabrics targets as the files of a read-only FUSE file system, for
//! programs that know files only.
//!
//! [`mount`] connects to the targets of a [`MountSource`], and shows their namespaces by their
//! names below a folder. A name with slashes is a path. Files have exact sizes, and the page cache
//! of the kernel keeps what was read for as long as the namespaces are what they were.
//!
//! ```no_run
//! use feedrail_initiator::{Host, SubsystemAddress};
//! use feedrail_mount::{MountOptions, MountSource, SourceTarget, mount};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let address = SubsystemAddress {
//!     address: "192.0.2.7:4420".parse()?,
//!     nqn: "nqn.2024-01.org.example:shards".parse()?,
//! };
//! let url = "nvmf://192.0.2.7/nqn.2024-01.org.example:shards".to_owned();
//! let source = MountSource::subsystem(SourceTarget { address, url, options: None });
//! let mounted = mount(&source, &Host::builder(), "/mnt".as_ref(), &MountOptions::default())?;
//! // Until somebody unmounts it.
//! mounted.wait();
//! # Ok(())
//! # }
//! ```
//!
//! # How it works
//! `fuser` mounts and shakes hands with the kernel. From then on lanes answer it: threads with a
//! descriptor of `/dev/fuse`, a polled host and connections of their own. A lane reads a request,
//! submits it as a plan that is read into registered memory, and answers out of that memory. It
//! blocks on nothing but a poll of both sides, so that requests are interrupted and the file system
//! is unmounted whatever the target does.
//!
//! A watcher for each target lists namespaces, and again when the target tells of a change or was
//! connected to again. A namespace that changed has a new inode from then on: reads of the old one
//! are `ESTALE`, and the kernel is told to forget its pages.

mod answers;
mod connections;
mod device;
mod fault;
mod file;
mod lane;
mod mailbox;
mod mount;
mod open_files;
mod path;
mod place;
mod protocol;
mod reads;
mod source;
mod tree;
mod watch;

pub use mount::{MountError, MountOptions, Mounted, mount};
pub use place::{UnmountMode, unmount};
pub use source::{MountSource, SourceTarget};
