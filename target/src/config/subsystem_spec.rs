//! Settings of a subsystem as a configuration, the command line or an operator gives them.

use feedrail_auth::HostEntry;
use nvme_proto::{AsciiField, Nqn};
use uuid::Uuid;

use super::values::PrintableText;
use super::{
    Authentication, DirectoryConfig, HostPolicy, Machine, NamespaceConfig, Origin, QosLimits,
    QosOverride, SubsystemIdentity,
};
use crate::derived_ids;

/// Settings of a subsystem without its namespaces. Texts that are `None` are derived.
#[derive(Clone, Debug)]
pub(crate) struct SubsystemSpec {
    pub(crate) nqn: Nqn,
    pub(crate) serial: Option<PrintableText<20>>,
    pub(crate) model: Option<PrintableText<40>>,
    pub(crate) hosts: HostPolicy,
    pub(crate) deallocate: bool,
    /// Id of the dataset that its files belong to; `None` if they are of this machine.
    pub(crate) dataset_id: Option<Uuid>,
}

impl SubsystemSpec {
    /// Creates settings in which all others have their defaults.
    pub(crate) fn new(nqn: Nqn, hosts: HostPolicy) -> Self {
        Self { nqn, serial: None, model: None, hosts, deallocate: true, dataset_id: None }
    }

    /// Returns the configuration of the subsystem, without namespaces, on this machine.
    pub(crate) fn resolve(self, machine: &Machine, origin: Origin) -> SubsystemConfig {
        let Self { nqn, serial, model, hosts, deallocate, dataset_id } = self;
        let identity = SubsystemIdentity::new(machine, nqn, dataset_id);
        SubsystemConfig {
            nqn,
            serial: serial.map_or_else(|| identity.serial(), |PrintableText(text)| text),
            model: model.map_or(derived_ids::MODEL, |PrintableText(text)| text),
            hosts,
            authentication: Authentication::default(),
            host_entries: Vec::new(),
            each_host: QosLimits::default(),
            host_limits: Vec::new(),
            deallocate,
            identity,
            namespaces: Vec::new(),
            directories: Vec::new(),
            origin,
        }
    }
}

/// Configuration of a subsystem: its identity, the hosts that may use it, its namespaces.
#[derive(Clone, Debug)]
pub struct SubsystemConfig {
    /// NVMe Qualified Name, unique in the configuration.
    pub nqn: Nqn,
    /// Serial number, not blank.
    pub serial: AsciiField<20>,
    /// Model number, not blank.
    pub model: AsciiField<40>,
    /// Hosts that may connect to it.
    pub hosts: HostPolicy,
    /// Which hosts have to authenticate.
    pub authentication: Authentication,
    /// Hosts with keys. They may connect, also if `hosts` does not list them.
    pub host_entries: Vec<HostEntry>,
    /// Limits of each host, as far as it has none of its own.
    pub each_host: QosLimits,
    /// Limits of single hosts. They may connect, also if `hosts` does not list them.
    pub host_limits: Vec<(Nqn, QosOverride)>,
    /// Whether hosts may deallocate blocks: Dataset Management, and Write Zeroes with Deallocate.
    pub deallocate: bool,
    /// Identity that the UUIDs of its namespaces are derived from.
    pub identity: SubsystemIdentity,
    /// Namespaces that the configuration lists one by one.
    pub namespaces: Vec<NamespaceConfig>,
    /// Directories whose files are namespaces.
    pub directories: Vec<DirectoryConfig>,
    /// Place in the configuration, for messages.
    pub origin: Origin,
}
