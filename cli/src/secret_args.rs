//! Secrets of in-band authentication on the command line.

use std::convert::Infallible;
use std::env::{self, VarError};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context as _, Result, bail};
use clap::Args;
use feedrail_auth::{Secret, read_key_file};
use feedrail_dataset::manifest::KeyPath;
use feedrail_initiator::ControllerOptions;
use zeroize::Zeroizing;

const HOST_VARIABLE: &str = "FEEDRAIL_DHCHAP_SECRET";
const CONTROLLER_VARIABLE: &str = "FEEDRAIL_DHCHAP_CTRL_SECRET";

/// Secrets with which this host and the target authenticate.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SecretArgs {
    /// Secret of this host, DHHC-1:..., for targets that require authentication. Other users of
    /// this machine can see it in `ps`: give a file instead [env: FEEDRAIL_DHCHAP_SECRET]
    #[arg(
        short = 'S',
        long,
        alias = "kxchap-secret",
        value_name = "KEY",
        conflicts_with = "dhchap_secret_file"
    )]
    dhchap_secret: Option<GivenSecret>,
    /// File that has the secret of this host as its only line, and that others cannot read
    #[arg(long, alias = "kxchap-secret-file", value_name = "FILE")]
    dhchap_secret_file: Option<PathBuf>,
    /// Secret with which the target has to prove who it is; visible to others like
    /// --dhchap-secret [env: FEEDRAIL_DHCHAP_CTRL_SECRET]
    #[arg(
        short = 'C',
        long,
        alias = "kxchap-ctrl-secret",
        value_name = "KEY",
        conflicts_with = "dhchap_ctrl_secret_file"
    )]
    dhchap_ctrl_secret: Option<GivenSecret>,
    /// File with the secret with which the target has to prove who it is
    #[arg(long, alias = "kxchap-ctrl-secret-file", value_name = "FILE")]
    dhchap_ctrl_secret_file: Option<PathBuf>,
}

/// Text of a secret, which is parsed later: clap's errors repeat what they refuse.
#[derive(Clone)]
struct GivenSecret(Zeroizing<String>);

impl FromStr for GivenSecret {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self(Zeroizing::new(text.to_owned())))
    }
}

impl fmt::Debug for GivenSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GivenSecret")
    }
}

/// Absolute paths of the key files on the command line, for manifests.
#[derive(Clone, Debug, Default)]
pub(crate) struct KeyFiles {
    pub(crate) host: Option<KeyPath>,
    pub(crate) controller: Option<KeyPath>,
}

impl SecretArgs {
    /// Returns the paths of the key files.
    ///
    /// # Errors
    /// A path cannot be in a manifest.
    pub(crate) fn key_files(&self) -> Result<KeyFiles> {
        let absolute = |path: &PathBuf| {
            let path = std::path::absolute(path)?;
            let text = path.to_str().context("the path of a key file is not UTF-8")?;
            Ok::<_, anyhow::Error>(text.parse::<KeyPath>()?)
        };
        Ok(KeyFiles {
            host: self.dhchap_secret_file.as_ref().map(absolute).transpose()?,
            controller: self.dhchap_ctrl_secret_file.as_ref().map(absolute).transpose()?,
        })
    }

    /// Adds the secrets to the options of connections.
    ///
    /// # Errors
    /// A text or a file is no secret; or there is a secret of the target only. They name option,
    /// variable or file.
    pub(crate) fn add_to(&self, options: ControllerOptions) -> Result<ControllerOptions> {
        let host = secret(
            self.dhchap_secret.as_ref(),
            self.dhchap_secret_file.as_ref(),
            "--dhchap-secret",
            HOST_VARIABLE,
        )?;
        let controller = secret(
            self.dhchap_ctrl_secret.as_ref(),
            self.dhchap_ctrl_secret_file.as_ref(),
            "--dhchap-ctrl-secret",
            CONTROLLER_VARIABLE,
        )?;
        Ok(match (host, controller) {
            (None, Some(_)) => bail!(
                "there is a secret of the target, and none of this host: give \
                 --dhchap-secret-file as well, since a target proves who it is only to a host that \
                 does"
            ),
            (None, None) => options,
            (Some(host), None) => options.dhchap_secret(host),
            (Some(host), Some(controller)) => {
                options.dhchap_secret(host).dhchap_ctrl_secret(controller)
            }
        })
    }
}

/// Returns the secret of an option, of a file or of a variable of the environment, in this order.
fn secret(
    given: Option<&GivenSecret>,
    file: Option<&PathBuf>,
    option: &'static str,
    variable: &'static str,
) -> Result<Option<Secret>> {
    if let Some(GivenSecret(text)) = given {
        return text.trim().parse().map(Some).context(option);
    }
    if let Some(path) = file {
        return Ok(Some(read_key_file(path)?));
    }
    match env::var(variable).map(Zeroizing::new) {
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => text.trim().parse().map(Some).context(variable),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => bail!("{variable}: a key has letters of ASCII only"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    const KEY: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";

    #[derive(Debug, Parser)]
    #[command(no_binary_name = true)]
    struct Command {
        #[command(flatten)]
        secrets: SecretArgs,
    }

    fn add(arguments: &[&str]) -> Result<ControllerOptions> {
        let command = Command::try_parse_from(arguments).expect("known options");
        let shown = format!("{command:?}");
        assert!(!shown.contains("AAECAw"), "{shown}");
        command.secrets.add_to(ControllerOptions::new())
    }

    #[test]
    fn names_of_both_versions_of_nvme_cli_are_known() {
        for host in ["-S", "--dhchap-secret", "--kxchap-secret"] {
            for controller in ["-C", "--dhchap-ctrl-secret", "--kxchap-ctrl-secret"] {
                let options = format!("{:?}", add(&[host, KEY, controller, KEY]).unwrap());
                assert_eq!(options.matches("32 bytes").count(), 2, "{options}");
            }
        }
    }

    #[test]
    fn mistakes_name_the_option_or_the_file_and_not_the_key() {
        let wrong = KEY.replace("AAEC", "AAED");
        for (arguments, words) in [
            (&["-S", &wrong][..], ["--dhchap-secret", "checksum"]),
            (&["-S", KEY, "-C", &wrong], ["--dhchap-ctrl-secret", "checksum"]),
            (&["-S", "secret"], ["--dhchap-secret", "DHHC-1:"]),
            (&["-C", KEY], ["none of this host", "--dhchap-secret-file"]),
            (&["--dhchap-secret-file", "/missing"], ["/missing", "gen-dhchap-key"]),
            (&["--kxchap-ctrl-secret-file", "/missing"], ["/missing", "gen-dhchap-key"]),
        ] {
            let message = format!("{:#}", add(arguments).unwrap_err());
            assert!(words.iter().all(|word| message.contains(word)), "{message}");
            assert!(!message.contains("AwQFBg"), "{message}");
        }
        let both = ["-S", KEY, "--dhchap-secret-file", "a"];
        let error = Command::try_parse_from(both).unwrap_err().to_string();
        assert!(!error.contains("AwQFBg"), "{error}");
    }
}
