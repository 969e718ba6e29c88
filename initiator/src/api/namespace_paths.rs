//! The paths that a namespace is reached over: one, or several that may change.

use std::slice;
use std::sync::Arc;

use crate::api::multipath::{CommandPath, Multipath};
use crate::api::path::{NamespaceInfo, NamespacePath};
use crate::api::path_set::{ChosenPath, PathSet};
use crate::driver::DriverState;
use crate::driver::host_state::Inner;
use crate::types::error::SubsystemAddress;

/// The paths of a namespace.
#[derive(Clone)]
pub(crate) enum NamespacePaths {
    /// A controller, which stays the only one.
    One(Arc<NamespacePath>),
    /// Several, or one that may get others beside it.
    Several(Arc<Multipath>),
}

/// The paths of a namespace at one time.
pub(crate) enum PathHandles<'a> {
    One(&'a Arc<NamespacePath>),
    Several(Arc<PathSet>),
}

impl PathHandles<'_> {
    /// There is at least one.
    pub(crate) fn as_slice(&self) -> &[Arc<NamespacePath>] {
        match self {
            Self::One(handle) => slice::from_ref(handle),
            Self::Several(set) => set.handles(),
        }
    }
}

impl NamespacePaths {
    /// The paths at present.
    pub(crate) fn handles(&self) -> PathHandles<'_> {
        match self {
            Self::One(path) => PathHandles::One(path),
            Self::Several(multipath) => PathHandles::Several(multipath.set()),
        }
    }

    /// The path that the next range takes, and those that it may be moved to.
    pub(crate) fn choose(&self, state: &mut DriverState) -> ChosenPath {
        match self {
            Self::One(path) => ChosenPath::only(path),
            Self::Several(multipath) => multipath.choose(state),
        }
    }

    /// The path that a command takes, after `before` another; `None` if there is no choice.
    pub(crate) fn command_path(&self, before: Option<&CommandPath>) -> Option<CommandPath> {
        match self {
            Self::One(_) => None,
            Self::Several(multipath) => multipath.command_path(before),
        }
    }

    pub(crate) fn host(&self) -> &Arc<Inner> {
        match self {
            Self::One(path) => path.host(),
            Self::Several(multipath) => multipath.host(),
        }
    }

    /// The properties of the namespace when it was opened.
    pub(crate) fn info(&self) -> &NamespaceInfo {
        match self {
            Self::One(path) => &path.info,
            Self::Several(multipath) => multipath.info(),
        }
    }

    /// The subsystem, at the address of the path that was the first when the namespace was opened.
    pub(crate) fn target(&self) -> &Arc<SubsystemAddress> {
        match self {
            Self::One(path) => &path.controller.target,
            Self::Several(multipath) => multipath.target(),
        }
    }
}
