//! Limits of I/O commands and bytes per second, with the names and units of SPDK's
//! `bdev_set_qos_limit`.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer};

use super::values::{IosPerSecond, MbytesPerSecond};

/// Defines the limits by the one list of them.
macro_rules! limits {
    ($($field:ident: $type:ty, $key:literal, $about:literal;)*) => {
        /// Limits of a host or of a namespace; 0 is no limit. A command passes when it is within
        /// all of them.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct QosLimits {
            $(#[doc = $about] pub $field: $type,)*
        }

        /// Limits as a file or an operator gives them; those that are missing keep another value.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
        #[serde(deny_unknown_fields)]
        pub struct QosOverride {
            $(#[doc = concat!($about, " `None` if it is missing.")]
            #[serde(rename = $key)]
            pub $field: Option<$type>,)*
        }

        impl QosLimits {
            /// Keys of the limits in files, RPCs and metrics.
            pub(crate) const KEYS: &[&'static str] = &[$($key),*];

            /// All limits, with their keys.
            pub fn by_key(&self) -> [(&'static str, u64); Self::KEYS.len()] {
                [$(($key, self.$field.get())),*]
            }
        }

        impl QosOverride {
            /// Parses the numbers that `given` returns for the keys of limits.
            ///
            /// # Errors
            /// The key of a number that is no limit, and the reason.
            pub(crate) fn parse(
                mut given: impl FnMut(&str) -> Result<Option<u64>, String>,
            ) -> Result<Self, String> {
                Ok(Self {$(
                    $field: given($key)
                        .and_then(|number| number.map(<$type>::try_from).transpose())
                        .map_err(|error| format!("{}: {error}", $key))?,
                )*})
            }

            /// Returns these limits, and those of `base` where one is missing.
            pub fn over(&self, base: QosLimits) -> QosLimits {
                QosLimits { $($field: self.$field.unwrap_or(base.$field)),* }
            }

            /// Returns these limits, and those of `earlier` where one is missing.
            pub(crate) fn or(self, earlier: Self) -> Self {
                Self { $($field: self.$field.or(earlier.$field)),* }
            }

            /// Limits that are given, with their keys.
            pub(crate) fn given(&self) -> impl Iterator<Item = (&'static str, u64)> {
                let limits = [$(($key, self.$field.map(<$type>::get))),*];
                limits.into_iter().filter_map(|(key, limit)| Some((key, limit?)))
            }
        }
    };
}

limits! {
    rw_ios: IosPerSecond, "rw_ios_per_sec", "Commands per second that read or write.";
    rw_mbytes: MbytesPerSecond, "rw_mbytes_per_sec", "Bytes per second of both directions.";
    r_mbytes: MbytesPerSecond, "r_mbytes_per_sec", "Bytes per second that are read.";
    w_mbytes: MbytesPerSecond, "w_mbytes_per_sec", "Bytes per second that are written.";
}

impl QosLimits {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }

    /// Limits that are not 0, with their keys.
    pub fn present(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.by_key().into_iter().filter(|(_, limit)| *limit > 0)
    }
}

impl QosOverride {
    /// Whether all limits are missing.
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for QosLimits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&list(self.present()))
    }
}

impl Serialize for QosOverride {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.given())
    }
}

impl Serialize for QosLimits {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.by_key())
    }
}

fn list(limits: impl Iterator<Item = (&'static str, u64)>) -> String {
    let words: Vec<_> = limits.map(|(key, limit)| format!("{key} {limit}")).collect();
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Config, HostPolicy};

    fn configuration(tables: &str) -> Result<Config, String> {
        let head = "[[port]]\naddress = \"127.0.0.1\"\n[[subsystem]]\nnqn = \"nqn.2026-01.a:s\"\n";
        let namespace = "[[subsystem.namespace]]\nkind = \"null\"\nsize_bytes = 4096\n";
        let text = format!("{head}{tables}\n{namespace}w_mbytes_per_sec = 7\n");
        Config::from_toml(Path::new("/t.toml"), &text).map_err(|error| error.to_string())
    }

    #[test]
    fn hosts_and_namespaces_of_a_file_have_limits() {
        let config = configuration(
            "[subsystem.each_host]\nr_mbytes_per_sec = 500\n\
             [[subsystem.host]]\nnqn = \"nqn.2026-01.a:h\"\nrw_ios_per_sec = 2000\n\
             [[subsystem.host]]\nnqn = \"nqn.2026-01.a:k\"\ndhchap_key = \"k\"\nr_mbytes_per_sec = 0\n\
             [[subsystem.host]]\nnqn = \"nqn.2026-01.a:l\"\ndhchap_key = \"l\"\n",
        );
        // A host without a key cannot authenticate as the others have to.
        assert!(config.expect_err("keyless").contains("add [[subsystem.host]] with its nqn"));
        let config = configuration(
            "[subsystem.each_host]\nr_mbytes_per_sec = 500\n\
             [[subsystem.host]]\nnqn = \"nqn.2026-01.a:h\"\nrw_ios_per_sec = 2000\n",
        );
        let config = config.expect("valid");
        let subsystem = &config.subsystems[0];
        assert_eq!(subsystem.hosts, HostPolicy::Listed(Vec::new()), "the table lets it in");
        assert_eq!(subsystem.each_host.to_string(), "r_mbytes_per_sec 500");
        let [(host, limits)] = &subsystem.host_limits[..] else { panic!("one host") };
        assert_eq!(host.as_str(), "nqn.2026-01.a:h");
        let limits = limits.over(subsystem.each_host).to_string();
        assert_eq!(limits, "rw_ios_per_sec 2000, r_mbytes_per_sec 500");
        assert_eq!(subsystem.namespaces[0].qos.to_string(), "w_mbytes_per_sec 7");
    }

    #[test]
    fn mistakes_in_tables_of_hosts_are_named() {
        let host = "[[subsystem.host]]\nnqn = \"nqn.2026-01.a:h\"\n";
        for (tables, words) in [
            (host.to_owned(), "has no dhchap_key, with which the host authenticates, and no limit"),
            (format!("{host}dhchap_ctrl_key = \"c\"\nrw_ios_per_sec = 0\n"), "has no dhchap_key"),
            (
                format!("{host}rw_ios_per_sec = 1500\n"),
                "t.toml:7:18: subsystem.host.rw_ios_per_sec: is 1500",
            ),
            (format!("{host}r_mbytes_per_sec = 1\n{host}w_mbytes_per_sec = 1\n"), "two entries"),
            (format!("{host}ios = 1\n"), "unknown field `ios`"),
            ("allow_any_host = true\neach_host = { r = 1 }\n".to_owned(), "unknown field `r`"),
        ] {
            let message = configuration(&tables).expect_err(words);
            assert!(message.contains(words), "{words}: {message}");
        }
    }

    fn parse(text: &str) -> Result<QosOverride, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn missing_limits_are_those_below() {
        let base = parse("rw_ios_per_sec = 2000\nr_mbytes_per_sec = 7").expect("valid");
        let over = parse("rw_ios_per_sec = 0\nw_mbytes_per_sec = 3").expect("valid");
        let limits = over.over(base.over(QosLimits::default()));
        assert_eq!(limits.to_string(), "r_mbytes_per_sec 7, w_mbytes_per_sec 3");
        let both = over.or(base);
        let given: Vec<_> = both.given().collect();
        assert_eq!(
            given,
            [("rw_ios_per_sec", 0), ("r_mbytes_per_sec", 7), ("w_mbytes_per_sec", 3)]
        );
        assert!(QosOverride::default().is_empty() && !over.is_empty());
        assert_eq!(QosLimits::default().to_string(), "none");
    }

    #[test]
    fn numbers_that_are_no_limits_are_refused() {
        for (text, word) in [
            ("rw_ios_per_sec = 1500", "multiple of 1000"),
            ("rw_ios_per_sec = 999", "multiple of 1000"),
            ("rw_ios_per_sec = 100001000", "is 100001000"),
            ("rw_ios_per_sec = -1", "-1"),
            ("rw_ios_per_sec = 1000.0", "floating point"),
            ("rw_mbytes_per_sec = \"10\"", "string"),
            ("r_mbytes_per_sec = 1000001", "is 1000001"),
            ("w_mbytes_per_sec = -5", "-5"),
            ("ios_per_sec = 1000", "unknown field"),
        ] {
            let message = parse(text).expect_err(text);
            assert!(message.contains(word), "{text}: {message}");
        }
    }
}
