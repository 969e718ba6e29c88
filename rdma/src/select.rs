//! Which provider serves an address, and why.

use core::fmt;
use core::str::FromStr;
use std::fs;
use std::net::IpAddr;
use std::path::Path;

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
#[non_exhaustive]
pub enum Choice {
    /// [`crate::soft`].
    Soft,
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
        match self.choice {
            Choice::Soft => write!(f, "soft: {}", self.reason),
        }
    }
}

/// Why no provider serves an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SelectError {
    /// What was asked for is not to be had.
    #[error("the verbs provider is not part of this build ({devices}): use soft or auto")]
    NoVerbs {
        /// What RDMA devices there are, in words.
        devices: String,
    },
}

/// Chooses the provider for the local address `_address`.
///
/// # Errors
/// The provider that was asked for can not serve it.
pub fn select(kind: ProviderKind, _address: IpAddr) -> Result<Selection, SelectError> {
    choose(kind, &devices(Path::new(DEVICES)))
}

fn choose(kind: ProviderKind, devices: &Devices) -> Result<Selection, SelectError> {
    let reason = match (kind, devices) {
        (ProviderKind::Soft, _) => "as asked for".to_owned(),
        (ProviderKind::Verbs, _) => {
            return Err(SelectError::NoVerbs { devices: devices.to_string() });
        }
        (ProviderKind::Auto, Devices::Some(_)) => {
            format!("the verbs provider is not part of this build, though there is {devices}")
        }
        (ProviderKind::Auto, _) => devices.to_string(),
    };
    Ok(Selection { choice: Choice::Soft, reason })
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

    #[test]
    fn the_reason_is_said() {
        let nothing = devices(Path::new("/nonexistent/infiniband"));
        let reason = choose(ProviderKind::Auto, &nothing).unwrap().to_string();
        assert_eq!(reason, "soft: no RDMA device (/nonexistent/infiniband does not exist)");
        let some = Devices::Some(vec!["mlx5_0".into(), "rxe0".into()]);
        let reason = choose(ProviderKind::Auto, &some).unwrap().reason;
        assert!(reason.contains("RDMA device mlx5_0, rxe0"), "{reason}");
        assert_eq!(choose(ProviderKind::Soft, &some).unwrap().reason, "as asked for");
    }

    #[test]
    fn verbs_says_what_to_use_instead() {
        let none = Devices::None("/sys/class/infiniband".into());
        let error = choose(ProviderKind::Verbs, &none).unwrap_err().to_string();
        assert!(error.contains("use soft or auto") && error.contains("is empty"), "{error}");
    }
}
