//! `feedrail check-dhchap-key`: checks a secret for in-band authentication.

use std::io::{self, Read as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use feedrail_auth::{Secret, read_key_file};
use serde_json::json;
use zeroize::Zeroizing;

use crate::options::{Format, Output};
use crate::output;

/// Longest text that is read from stdin, in bytes.
const MAX_BYTES: u64 = 4096;

const EXAMPLES: &str = "\
Examples:
  feedrail check-dhchap-key --keyfile /etc/feedrail/host.key
      Checks the key, and that nobody else can read the file.
  feedrail gen-dhchap-key | feedrail check-dhchap-key
  feedrail check-dhchap-key --keyfile host.key -o json";

/// Checks a secret for in-band authentication (DH-HMAC-CHAP)
///
/// Checks the format DHHC-1:HH:...:, the length and the checksum, and of a file that other users
/// cannot read it, as a target or a host does. Without --keyfile and --key the secret is read from
/// stdin. The secret is not printed.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckDhchapKey {
    /// File that has the secret as its only line
    #[arg(short = 'f', long, value_name = "FILE", conflicts_with = "key")]
    keyfile: Option<PathBuf>,
    /// Secret. Other users can see it while the command runs
    #[arg(short = 'k', long, value_name = "DHHC-1:...")]
    key: Option<String>,
    #[command(flatten)]
    output: Output,
}

impl CheckDhchapKey {
    pub(crate) fn run(&self) -> Result<()> {
        let secret = self.secret()?;
        let (hmac, length) = (secret.transformation().code(), secret.length());
        let checksum = format!("{:08x}", secret.checksum());
        if length != secret.transformation().usual_bytes() && hmac != 0 {
            output::note(format_args!(
                "feedrail: nvme-cli 2 refuses a key of {length} bytes with HMAC {hmac}"
            ));
        }
        match self.output.output_format {
            Format::Normal => output::print(&format!(
                "Key is valid (HMAC {hmac}, length {length}, CRC {checksum})\n"
            )),
            Format::Json => output::print(&output::json(&json!({
                "valid": true,
                "hmac": hmac,
                "length": length,
                "crc": checksum,
            }))),
        }
    }

    fn secret(&self) -> Result<Secret> {
        match (&self.keyfile, &self.key) {
            (Some(path), _) => Ok(read_key_file(path)?),
            (None, Some(text)) => text.parse().context("--key"),
            (None, None) => {
                let mut text = Zeroizing::new(String::with_capacity(MAX_BYTES as usize));
                let stdin = io::stdin().lock();
                stdin.take(MAX_BYTES).read_to_string(&mut text).context("stdin")?;
                text.trim().parse().context("stdin")
            }
        }
    }
}
