//! Which provider serves an address, and why.

use core::fmt;
use core::str::FromStr;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

use crate::verbs::{self, VerbsError};

/// Where Linux lists RDMA devices.
const DEVICES: &str = "/sys/class/infiniband";

/// What a user asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ProviderKind {
    /// Verbs where a device serves the address, else soft.
    #[default]
    Auto,
    /// RDMA devices through libibverbs.
    Verbs,
    /// RoCE v2 in userspace over UDP.
    Soft,
}

impl ProviderKind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Verbs, Self::Soft];

    /// As users type it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Verbs => "verbs",
            Self::Soft => "soft",
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

/// A provider's name that is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a provider: use auto, verbs or soft")]
pub struct UnknownProvider(String);

/// The provider that serves an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// [`crate::verbs`].
    Verbs,
    /// [`crate::soft`].
    Soft,
}

impl Choice {
    /// The provider's name, as users type it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Verbs => ProviderKind::Verbs.name(),
            Self::Soft => ProviderKind::Soft.name(),
        }
    }
}

/// A choice and its reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selection {
    /// What was chosen.
    pub choice: Choice,
    /// Why, in words.
    pub reason: String,
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.choice.name(), self.reason)
    }
}

/// Why no provider serves an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// Verbs were asked for and are not to be had.
    #[error("the verbs provider cannot serve this address, use soft or auto: {0}")]
    NoVerbs(String),
}

/// Chooses the provider for a local address.
///
/// # Errors
/// The provider that was asked for can not serve it.
pub fn select(kind: ProviderKind, address: IpAddr) -> Result<Selection, SelectError> {
    if kind == ProviderKind::Soft {
        return Ok(Selection { choice: Choice::Soft, reason: "as asked for".to_owned() });
    }
    choose(kind, &devices(Path::new(DEVICES)), || verbs::device_for(address))
}

/// Libraries are only looked for where the kernel lists a device: most machines have neither.
fn choose(
    kind: ProviderKind,
    devices: &Devices,
    serving: impl FnOnce() -> Result<verbs::DeviceInfo, VerbsError>,
) -> Result<Selection, SelectError> {
    let obstacle = match devices {
        Devices::Some(_) => match serving() {
            Ok(device) => {
                let reason = format!("RDMA device {} serves the address", device.caps.name);
                return Ok(Selection { choice: Choice::Verbs, reason });
            }
            Err(error) => format!("{error} (there is {devices})"),
        },
        none => none.to_string(),
    };
    match kind {
        ProviderKind::Verbs => Err(SelectError::NoVerbs(obstacle)),
        _ => Ok(Selection { choice: Choice::Soft, reason: obstacle }),
    }
}

/// The RDMA devices of this machine.
#[derive(Debug, PartialEq, Eq)]
enum Devices {
    NoClass(String),
    None(String),
    Some(Vec<String>),
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoClass(path) => write!(f, "no RDMA device ({path} does not exist)"),
            Self::None(path) => write!(f, "no RDMA device ({path} is empty)"),
            Self::Some(names) => write!(f, "RDMA device {}", names.join(", ")),
        }
    }
}

fn devices(class: &Path) -> Devices {
    let path = class.display().to_string();
    let Ok(entries) = fs::read_dir(class) else { return Devices::NoClass(path) };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    if names.is_empty() { Devices::None(path) } else { Devices::Some(names) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for kind in ProviderKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "rdma".parse::<ProviderKind>().unwrap_err();
        assert_eq!(error.to_string(), "\"rdma\" is not a provider: use auto, verbs or soft");
    }

    fn no_route() -> Result<verbs::DeviceInfo, VerbsError> {
        let address = IpAddr::from([192, 0, 2, 1]);
        Err(VerbsError::NoRoute { address, reason: "No such device".to_owned() })
    }

    fn rxe() -> Result<verbs::DeviceInfo, VerbsError> {
        Ok(verbs::DeviceInfo {
            caps: crate::Caps::software("rxe0"),
            vendor_id: 0,
            firmware: String::new(),
            ports: 1,
            completion_vectors: 1,
        })
    }

    fn never() -> Result<verbs::DeviceInfo, VerbsError> {
        panic!("looked for libraries without a device")
    }

    #[test]
    fn without_a_device_no_library_is_looked_for() {
        let nothing = devices(Path::new("/nonexistent/infiniband"));
        let chosen = choose(ProviderKind::Auto, &nothing, never).unwrap().to_string();
        assert_eq!(chosen, "soft: no RDMA device (/nonexistent/infiniband does not exist)");
        let none = Devices::None("/sys/class/infiniband".into());
        let error = choose(ProviderKind::Verbs, &none, never).unwrap_err().to_string();
        assert!(error.contains("use soft or auto") && error.contains("is empty"), "{error}");
    }

    #[test]
    fn a_device_that_serves_the_address_is_chosen() {
        let some = Devices::Some(vec!["mlx5_0".into(), "rxe0".into()]);
        for kind in [ProviderKind::Auto, ProviderKind::Verbs] {
            let chosen = choose(kind, &some, rxe).unwrap();
            assert_eq!(chosen.to_string(), "verbs: RDMA device rxe0 serves the address");
        }
    }

    #[test]
    fn devices_elsewhere_are_named() {
        let some = Devices::Some(vec!["mlx5_0".into(), "rxe0".into()]);
        let chosen = choose(ProviderKind::Auto, &some, no_route).unwrap();
        assert_eq!(chosen.choice, Choice::Soft);
        let names = "there is RDMA device mlx5_0, rxe0";
        assert!(chosen.reason.contains("192.0.2.1") && chosen.reason.contains(names), "{chosen}");
        let error = choose(ProviderKind::Verbs, &some, no_route).unwrap_err().to_string();
        assert!(error.contains("No such device") && error.contains("use soft"), "{error}");
    }
}
