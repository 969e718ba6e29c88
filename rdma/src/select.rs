//! Choice of the provider that serves an address.

use core::fmt;
use core::str::FromStr;
use std::net::IpAddr;
use std::path::Path;

use crate::interface;
use crate::soft;
use crate::sysfs::{self, SysfsDevice, SysfsPort};
use crate::verbs::{self, ServingPort, VerbsError};

/// The provider that a user requests on the command line or in the configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProviderKind {
    /// Shared memory if [`auto_shares_memory`] allows it and the peer supports it, else verbs if an
    /// RDMA device serves the address, else soft.
    #[default]
    Auto,
    /// RDMA devices through libibverbs.
    Verbs,
    /// RoCE v2 in userspace over UDP.
    Soft,
    /// Shared memory, with peers on this machine only.
    Shm,
}

impl ProviderKind {
    /// All kinds; the name of each ([`ProviderKind::name`]) parses to it.
    pub const ALL: [Self; 4] = [Self::Auto, Self::Verbs, Self::Soft, Self::Shm];

    /// The name as users type it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Verbs => "verbs",
            Self::Soft => "soft",
            Self::Shm => "shm",
        }
    }
}

impl fmt::Display for ProviderKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ProviderKind {
    type Err = UnknownProvider;

    fn from_str(text: &str) -> Result<Self, UnknownProvider> {
        Self::ALL
            .into_iter()
            .find(|kind| kind.name() == text)
            .ok_or_else(|| UnknownProvider(text.to_owned()))
    }
}

/// Error of parsing a name that is not a provider's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a provider: use auto, verbs, soft or shm")]
pub struct UnknownProvider(String);

/// The provider that was chosen for an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// RDMA devices through [`crate::verbs`].
    Verbs,
    /// Userspace RoCE v2 through [`crate::soft`].
    Soft,
    /// Shared memory through [`crate::shm`].
    Shm,
}

impl Choice {
    /// The provider's name, as users type it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Verbs => ProviderKind::Verbs.name(),
            Self::Soft => ProviderKind::Soft.name(),
            Self::Shm => ProviderKind::Shm.name(),
        }
    }
}

/// The chosen provider and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// The provider that serves the address.
    pub choice: Choice,
    /// The reason, as a phrase; [`fmt::Display`] writes it after the provider's name.
    pub reason: String,
    /// Set if the device's port is not active, so that no traffic can pass at present; the text has
    /// the state and the fix.
    pub down: Option<String>,
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.choice.name(), self.reason)
    }
}

impl Selection {
    fn soft(reason: String) -> Self {
        Self { choice: Choice::Soft, reason, down: None }
    }
}

/// The reason why no provider serves an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// The verbs provider was requested and is not available.
    #[error("the verbs provider cannot serve {address}, use soft or auto: {reason}")]
    NoVerbs {
        /// The local address that verbs were asked to serve.
        address: IpAddr,
        /// The obstacle, as a phrase, with the fix if known.
        reason: String,
    },
    /// The address belongs to no interface of this machine.
    #[error("{0} is not an address of this machine: `ip address` lists those that are")]
    NotLocal(IpAddr),
}

/// Whether `auto` may use shared memory with peers at an address: it belongs to this machine, and
/// the process does not inject faults of the soft provider (its environment variable is unset).
pub fn auto_shares_memory(address: IpAddr) -> bool {
    let faults = std::env::var_os(soft::FAULTS_VARIABLE);
    faults.is_none_or(|text| text.is_empty()) && interface::name_of(address).is_some()
}

/// Chooses the provider for a local address. `Auto` never returns shared memory here: it is used
/// per peer.
///
/// # Errors
/// The requested provider cannot serve the address, or the address is not local.
pub fn select(kind: ProviderKind, address: IpAddr) -> Result<Selection, SelectError> {
    let as_asked_for = "as asked for".to_owned();
    match kind {
        ProviderKind::Soft => return Ok(Selection::soft(as_asked_for)),
        ProviderKind::Shm => {
            return Ok(Selection { choice: Choice::Shm, reason: as_asked_for, down: None });
        }
        ProviderKind::Auto | ProviderKind::Verbs => {}
    }
    let question = Question { kind, address, interface: interface::name_of(address) };
    question.answer(sysfs::devices(Path::new(sysfs::CLASS)), || verbs::device_for(address))
}

/// The request to choose a provider, and what is known without opening a device.
struct Question {
    kind: ProviderKind,
    address: IpAddr,
    interface: Option<String>,
}

impl Question {
    /// Chooses the provider. `serving`, which loads rdma-core's libraries, is called only if the
    /// kernel lists a device: most machines have neither.
    fn answer(
        &self,
        devices: Option<Vec<SysfsDevice>>,
        serving: impl FnOnce() -> Result<ServingPort, VerbsError>,
    ) -> Result<Selection, SelectError> {
        let obstacle = match devices.as_deref() {
            None => format!("no RDMA device ({} does not exist)", sysfs::CLASS),
            Some([]) => format!("no RDMA device ({} is empty)", sysfs::CLASS),
            Some(devices) => match serving() {
                Err(VerbsError::NotLocal(address)) => return Err(SelectError::NotLocal(address)),
                serving => match self.verbs(devices, serving) {
                    Ok(selection) => return Ok(selection),
                    Err(obstacle) => obstacle + &self.taken_port(devices),
                },
            },
        };
        match self.kind {
            ProviderKind::Verbs => {
                Err(SelectError::NoVerbs { address: self.address, reason: obstacle })
            }
            _ => Ok(Selection::soft(obstacle)),
        }
    }

    /// Returns the verbs provider, or the obstacle.
    fn verbs(
        &self,
        devices: &[SysfsDevice],
        serving: Result<ServingPort, VerbsError>,
    ) -> Result<Selection, String> {
        let serving = serving.map_err(|error| self.explain(&error, devices))?;
        let name = &serving.device.caps.name;
        if serving.device.caps.iwarp {
            return Err(VerbsError::Iwarp(name.clone()).to_string());
        }
        let reason = format!("RDMA device {name} serves the address");
        let device = devices.iter().find(|device| device.name == *name);
        let Some((device, port)) = device.and_then(|d| Some((d, d.port(serving.port)?))) else {
            // The kernel's list has changed since; librdmacm's answer is the newer one.
            return Ok(Selection { choice: Choice::Verbs, reason, down: None });
        };
        let has_roce_v2 = port.has_roce_v2(self.address);
        if port.is_ethernet() && !has_roce_v2 {
            return Err(self.no_gid(device, port));
        }
        if port.is_active() {
            return Ok(Selection { choice: Choice::Verbs, reason, down: None });
        }
        let down = self.not_active(device, port);
        if !has_roce_v2 && self.kind != ProviderKind::Verbs {
            return Err(down);
        }
        let alone =
            if has_roce_v2 { " and has UDP port 4791 there, so soft cannot stand in" } else { "" };
        let reason = format!("{reason}{alone}; {down}");
        Ok(Selection { choice: Choice::Verbs, reason, down: Some(down) })
    }

    /// The reason why verbs do not serve the address: the state of the port as the kernel lists it,
    /// if known, else the provider's error.
    fn explain(&self, error: &VerbsError, devices: &[SysfsDevice]) -> String {
        let on_its_interface = |device: &SysfsDevice| -> Option<String> {
            let port = device.port_on(self.interface.as_deref()?)?;
            Some(if port.is_active() {
                self.no_gid(device, port)
            } else {
                self.not_active(device, port)
            })
        };
        let hint = match error {
            VerbsError::NotServed(_) => devices.iter().find_map(on_its_interface),
            _ => None,
        };
        hint.unwrap_or_else(|| {
            let names: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
            format!("{error} (there is RDMA device {})", names.join(", "))
        })
    }

    fn not_active(&self, device: &SysfsDevice, port: &SysfsPort) -> String {
        let SysfsDevice { name, .. } = device;
        let SysfsPort { number, state, physical_state, .. } = port;
        let fix = match self.interface.as_deref() {
            Some(interface) => {
                format!("bring {interface} up, as with `ip link set {interface} up`")
            }
            None => "bring its link up".to_owned(),
        };
        format!("port {number} of RDMA device {name} is {state} ({physical_state}); {fix}")
    }

    fn no_gid(&self, device: &SysfsDevice, port: &SysfsPort) -> String {
        let (address, name, number) = (self.address, &device.name, port.number);
        format!(
            "port {number} of RDMA device {name} has no RoCE v2 GID for {address}; add the address to its interface \
             anew, or see with `rdma link` and `ibv_devinfo -v` whether it does RoCE v2"
        )
    }

    /// A warning that soft may receive nothing because an RDMA device takes UDP port 4791 of the
    /// address; empty if none does.
    fn taken_port(&self, devices: &[SysfsDevice]) -> String {
        let takes_it =
            |device: &&SysfsDevice| device.ports.iter().any(|p| p.has_roce_v2(self.address));
        match devices.iter().find(takes_it) {
            Some(device) => format!(
                "; soft may hear nothing there, because {} takes what is sent to UDP port 4791",
                device.name
            ),
            None => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sysfs::tests::{FakeClass, GID_OF_10_1_0_1};

    const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 0, 1));

    fn question(kind: ProviderKind) -> Question {
        Question { kind, address: ADDRESS, interface: Some("veth0".to_owned()) }
    }

    /// `rxe0` on `veth0` with port 1 in some state and, if `kind` is given, a GID for the address.
    fn rxe(state: &str, kind: Option<&str>) -> Vec<SysfsDevice> {
        let class = FakeClass::new();
        class.port("rxe0", state, "Ethernet").file("rxe0/parent", "veth0");
        if let Some(kind) = kind {
            class.gid("rxe0", 1, GID_OF_10_1_0_1, kind, "veth0");
        }
        class.devices()
    }

    fn served() -> Result<ServingPort, VerbsError> {
        let device = verbs::DeviceInfo {
            caps: crate::Caps::software("rxe0"),
            no_send_with_invalidate: None,
            no_memory_windows: None,
            vendor_id: 0,
            firmware: String::new(),
            ports: 1,
            completion_vectors: 1,
        };
        Ok(ServingPort { device, port: 1 })
    }

    fn not_served() -> Result<ServingPort, VerbsError> {
        Err(VerbsError::NotServed(ADDRESS))
    }

    fn no_library() -> Result<ServingPort, VerbsError> {
        let reason = "cannot open shared object file".to_owned();
        Err(verbs::LoadError::NoLibrary { library: "libibverbs.so.1", reason }.into())
    }

    fn never() -> Result<ServingPort, VerbsError> {
        panic!("looked for libraries without a device")
    }

    type Serving = fn() -> Result<ServingPort, VerbsError>;

    fn auto(devices: Vec<SysfsDevice>, serving: Serving) -> Selection {
        question(ProviderKind::Auto).answer(Some(devices), serving).unwrap()
    }

    fn verbs_only(devices: Vec<SysfsDevice>, serving: Serving) -> Result<Selection, String> {
        let answer = question(ProviderKind::Verbs).answer(Some(devices), serving);
        answer.map_err(|error| error.to_string())
    }

    #[test]
    fn names_round_trip() {
        for kind in ProviderKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "rdma".parse::<ProviderKind>().unwrap_err();
        assert_eq!(error.to_string(), "\"rdma\" is not a provider: use auto, verbs, soft or shm");
    }

    #[test]
    fn without_a_device_no_library_is_looked_for() {
        let chosen = question(ProviderKind::Auto).answer(None, never).unwrap().to_string();
        assert_eq!(chosen, "soft: no RDMA device (/sys/class/infiniband does not exist)");
        let error = verbs_only(Vec::new(), never).unwrap_err();
        assert!(error.contains("use soft or auto") && error.contains("is empty"), "{error}");
    }

    #[test]
    fn a_device_that_serves_the_address_is_chosen() {
        let up = || rxe("4: ACTIVE", Some("RoCE v2"));
        for chosen in [auto(up(), served), verbs_only(up(), served).unwrap()] {
            assert_eq!(chosen.to_string(), "verbs: RDMA device rxe0 serves the address");
            assert_eq!(chosen.down, None);
        }
    }

    #[test]
    fn an_iwarp_device_is_refused_with_the_reason() {
        let up = || rxe("4: ACTIVE", None);
        let iwarp = || {
            let mut serving = served()?;
            serving.device.caps.iwarp = true;
            Ok(serving)
        };
        let chosen = auto(up(), iwarp);
        assert_eq!(chosen.choice, Choice::Soft);
        assert!(chosen.reason.contains("rxe0 speaks iWARP"), "{}", chosen.reason);
        let error = verbs_only(up(), iwarp).unwrap_err();
        assert!(error.contains("use soft") && error.contains("iWARP"), "{error}");
    }

    #[test]
    fn a_down_port_is_named_with_its_fix() {
        let down = || rxe("1: DOWN", Some("RoCE v2"));
        // Peers could not reach soft there, since the device has the port; so it is verbs, once the
        // link is up.
        for chosen in [auto(down(), served), verbs_only(down(), served).unwrap()] {
            assert_eq!(chosen.choice, Choice::Verbs);
            let text = chosen.down.unwrap();
            assert!(chosen.reason.contains(&text), "{}", chosen.reason);
            assert!(text.contains("port 1 of RDMA device rxe0 is DOWN"), "{text}");
            assert!(text.contains("`ip link set veth0 up`"), "{text}");
        }
        // The kernel no longer binds to it, and it takes no packets: soft.
        let chosen = auto(rxe("1: DOWN", None), not_served);
        assert_eq!((chosen.choice, chosen.down), (Choice::Soft, None));
        assert!(chosen.reason.contains("is DOWN"), "{}", chosen.reason);
        assert!(verbs_only(rxe("1: DOWN", None), not_served).unwrap_err().contains("is DOWN"));
    }

    #[test]
    fn an_inactive_infiniband_port_leaves_soft() {
        let class = FakeClass::new();
        class.port("rxe0", "2: INIT", "InfiniBand");
        let chosen = auto(class.devices(), served);
        assert_eq!(chosen.choice, Choice::Soft);
        assert!(chosen.reason.contains("is INIT (LinkUp)"), "{}", chosen.reason);
        let asked_for = verbs_only(class.devices(), served).unwrap();
        assert!(asked_for.down.unwrap().contains("is INIT"));
    }

    #[test]
    fn an_address_without_gid_is_left_to_soft() {
        for (devices, serving) in [
            (rxe("4: ACTIVE", Some("IB/RoCE v1")), served as Serving),
            (rxe("4: ACTIVE", Some("IB/RoCE v1")), not_served),
            (rxe("4: ACTIVE", None), not_served),
        ] {
            let chosen = auto(devices.clone(), serving);
            assert_eq!(chosen.choice, Choice::Soft);
            let what = "rxe0 has no RoCE v2 GID for 10.1.0.1";
            assert!(chosen.reason.contains(what), "{}", chosen.reason);
            assert!(verbs_only(devices, serving).unwrap_err().contains(what));
        }
    }

    #[test]
    fn without_libraries_soft_is_chosen_with_a_warning() {
        let chosen = auto(rxe("4: ACTIVE", Some("RoCE v2")), no_library);
        assert_eq!(chosen.choice, Choice::Soft);
        assert!(chosen.reason.contains("cannot open shared object file"), "{}", chosen.reason);
        assert!(
            chosen.reason.contains("rxe0 takes what is sent to UDP port 4791"),
            "{}",
            chosen.reason
        );
        let elsewhere = auto(rxe("4: ACTIVE", None), no_library);
        assert!(!elsewhere.reason.contains("4791"), "{}", elsewhere.reason);
    }

    #[test]
    fn an_address_of_another_machine_is_nobodys() {
        for kind in [ProviderKind::Auto, ProviderKind::Verbs] {
            let serving = || Err(VerbsError::NotLocal(ADDRESS));
            let answer = question(kind).answer(Some(rxe("4: ACTIVE", None)), serving);
            assert_eq!(answer, Err(SelectError::NotLocal(ADDRESS)));
        }
    }

    #[test]
    fn devices_elsewhere_are_named() {
        let mut devices = rxe("4: ACTIVE", None);
        devices[0].parent = Some("eth7".to_owned());
        let chosen = auto(devices.clone(), not_served);
        assert_eq!(chosen.choice, Choice::Soft);
        let expected = "no RDMA device serves 10.1.0.1 (there is RDMA device rxe0)";
        assert_eq!(chosen.reason, expected);
        let error = verbs_only(devices, not_served).unwrap_err();
        assert!(error.contains(expected) && error.contains("use soft"), "{error}");
    }
}
