//! The paths of a namespace: one, or several that can change.

use std::slice;
use std::sync::Arc;

use crate::api::multipath::{CommandPath, Multipath};
use crate::api::path::{NamespaceInfo, NamespacePath};
use crate::api::path_set::{ChosenPath, PathSet};
use crate::driver::DriverState;
use crate::driver::host_state::Inner;
use crate::types::error::SubsystemAddress;

/// The paths of a namespace, which is open over a controller or over the ports of a subsystem.
#[derive(Clone)]
pub(crate) enum NamespacePaths {
    /// The path over one controller, which stays the only one.
    One(Arc<NamespacePath>),
    /// A set of paths, of at least one, which can change.
    Several(Arc<Multipath>),
}

/// The paths of a namespace at the time of a call.
pub(crate) enum PathHandles<'a> {
    One(&'a Arc<NamespacePath>),
    Several(Arc<PathSet>),
}

impl PathHandles<'_> {
    pub(crate) fn as_slice(&self) -> &[Arc<NamespacePath>] {
        match self {
            Self::One(handle) => slice::from_ref(handle),
            Self::Several(set) => set.handles(),
        }
    }
}

impl NamespacePaths {
    /// Returns the paths that new operations use.
    pub(crate) fn handles(&self) -> PathHandles<'_> {
        match self {
            Self::One(path) => PathHandles::One(path),
            Self::Several(multipath) => PathHandles::Several(multipath.set()),
        }
    }

    /// Chooses the path of the next range, with those that the range may be moved to.
    pub(crate) fn choose(&self, state: &mut DriverState) -> ChosenPath {
        match self {
            Self::One(path) => ChosenPath::only(path),
            Self::Several(multipath) => multipath.choose(state),
        }
    }

    /// Chooses the path of a command, other than those attempted up to `before`; `None` if there is
    /// no other path.
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

    /// Returns the properties of the namespace when it was opened.
    pub(crate) fn info(&self) -> &NamespaceInfo {
        match self {
            Self::One(path) => &path.info,
            Self::Several(multipath) => multipath.info(),
        }
    }

    /// Returns the subsystem, at the address of the path that was the first when the namespace was
    /// opened.
    pub(crate) fn target(&self) -> &Arc<SubsystemAddress> {
        match self {
            Self::One(path) => &path.controller.target,
            Self::Several(multipath) => multipath.target(),
        }
    }
}
