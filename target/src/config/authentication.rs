//! Hosts that have to authenticate, as a configuration says it.

use feedrail_auth::HostEntry;

/// Hosts of a subsystem that have to authenticate before they may use it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Authentication {
    /// All of them; a host without a key is refused.
    Required,
    /// Hosts with a key. Others are let in by their name.
    #[default]
    Offered,
    /// None, also those with a key.
    Off,
}

impl Authentication {
    /// Value of the key `authentication` in a configuration file.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Offered => "offered",
            Self::Off => "off",
        }
    }

    /// Value for a subsystem that says nothing: all hosts authenticate, if one has a key.
    pub(crate) fn of_entries(entries: &[HostEntry]) -> Self {
        match entries.is_empty() {
            true => Self::Offered,
            false => Self::Required,
        }
    }
}
