//! Options of a mount in the words of mount(8), as fstab has them.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use clap::Parser;

use crate::options::Local;

/// Options that mount(8) means for itself or for the kernel, which holds to them by itself or needs
/// not for files that can only be read.
const OF_MOUNT: [&str; 39] = [
    "",
    "ro",
    "rw",
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "group",
    "owner",
    "nofail",
    "_netdev",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "exec",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "async",
    "sync",
    "dirsync",
    "lazytime",
    "nolazytime",
    "symfollow",
    "nosymfollow",
    "silent",
    "loud",
    "mand",
    "nomand",
    "iversion",
    "noiversion",
];

/// Argument of `-o`: options with commas between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct MountWords(Vec<String>);

impl FromStr for MountWords {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.split(',').map(str::to_owned).collect()))
    }
}

#[derive(Debug, Default)]
pub(super) struct KnownOptions {
    pub(super) allow_other: bool,
    pub(super) auto_unmount: bool,
    pub(super) no_exec: bool,
    pub(super) threads: Option<u8>,
    pub(super) read_ahead: Option<u32>,
    pub(super) log_file: Option<PathBuf>,
    /// The options of connections, if any are given.
    pub(super) local: Option<Local>,
}

/// Options of connections as a command of their own.
#[derive(Debug, Parser)]
#[command(name = "-o", no_binary_name = true, disable_help_flag = true)]
struct ConnectionOptions {
    #[command(flatten)]
    local: Local,
}

impl MountWords {
    /// The options of all `-o` together.
    pub(super) fn join(all: &[Self]) -> Self {
        Self(all.iter().flat_map(|words| words.0.clone()).collect())
    }

    /// # Errors
    /// An option is not known, unless that is `sloppy`, or has a wrong value.
    pub(super) fn parse(&self, sloppy: bool) -> Result<KnownOptions> {
        let (mut known, mut arguments) = (KnownOptions::default(), Vec::new());
        for word in &self.0 {
            let number = |value: &str| format!("-o {word}: {value} is no number in range");
            match word.split_once('=') {
                None if word == "allow_other" => known.allow_other = true,
                None if word == "auto_unmount" => known.auto_unmount = true,
                None if word == "noexec" => known.no_exec = true,
                None if OF_MOUNT.contains(&word.as_str()) || is_of_mount(word) => {}
                None if word == "remount" => {
                    bail!("options of a mount do not change: unmount it, and mount it again")
                }
                Some(("threads", value)) => {
                    let threads = value.parse().ok().filter(|threads| (1..=64).contains(threads));
                    known.threads = Some(threads.with_context(|| number(value))?);
                }
                Some(("read_ahead", value)) => {
                    let kib = value.parse().ok().filter(|&kib| kib <= 1 << 20);
                    known.read_ahead = Some(kib.with_context(|| number(value))?);
                }
                Some(("log_file", value)) => known.log_file = Some(value.into()),
                Some((name, _)) if is_of_mount(name) => {}
                Some((name, value)) if is_of_connections(name) => {
                    arguments.extend([format!("--{}", name.replace('_', "-")), value.to_owned()]);
                }
                _ if sloppy => {}
                _ => bail!("-o {word}: there is no such option"),
            }
        }
        if !arguments.is_empty() {
            let parsed = ConnectionOptions::try_parse_from(&arguments);
            let parsed = parsed.map_err(|error| {
                let text = error.to_string();
                let line = text.lines().next().unwrap_or_default();
                anyhow::anyhow!("-o: {}", line.trim_start_matches("error: "))
            })?;
            known.local = Some(parsed.local);
        }
        Ok(known)
    }
}

/// Whether an option is one that mount(8) or others keep for themselves, by the name in front of
/// its value.
fn is_of_mount(name: &str) -> bool {
    let is_of_others = name.starts_with("x-") || name.starts_with("X-");
    is_of_others || ["comment", "user", "uhelper"].contains(&name)
}

/// Whether an option is that of a connection, by its long name.
fn is_of_connections(name: &str) -> bool {
    use clap::CommandFactory as _;
    let command = ConnectionOptions::command();
    let name = name.replace('_', "-");
    command.get_arguments().any(|argument| argument.get_long() == Some(&name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::ProviderArg;

    fn parse(text: &str) -> Result<KnownOptions> {
        text.parse::<MountWords>().unwrap().parse(false)
    }

    #[test]
    fn options_of_fstab_are_taken() {
        let known = parse("rw,noexec,x-systemd.automount,allow_other,nofail,comment=a").unwrap();
        assert!(known.no_exec && known.allow_other && !known.auto_unmount && known.local.is_none());
        let options =
            "defaults,user=joe,X-mount.mkdir=0755,x-systemd.device-timeout=9,nosymfollow,sync";
        assert!(parse(options).is_ok());
        let known = parse("log_file=/var/log/shards.log").unwrap();
        assert_eq!(known.log_file, Some("/var/log/shards.log".into()));
        let known = parse("provider=soft,keep_alive_tmo=3,threads=4,read_ahead=0").unwrap();
        let local = known.local.unwrap();
        assert_eq!((local.provider, local.keep_alive_tmo), (ProviderArg::Soft, Some(3)));
        assert_eq!((known.threads, known.read_ahead, local.timeout), (Some(4), Some(0), 10_000));
    }

    #[test]
    fn others_are_named() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(error("ro,nonsense"), "-o nonsense: there is no such option");
        assert!(error("remount,ro").contains("mount it again"));
        assert!(error("threads=0").contains("threads=0"));
        assert!(error("provider=magic").contains("magic"));
        assert!("nonsense,a=b".parse::<MountWords>().unwrap().parse(true).is_ok());
    }
}
