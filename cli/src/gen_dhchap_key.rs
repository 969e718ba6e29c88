//! `feedrail gen-dhchap-key`: makes a secret for in-band authentication.

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use feedrail_auth::{Secret, Transformation};
use nvme_proto::Nqn;
use serde_json::json;
use zeroize::Zeroizing;

use crate::options::{Format, Output};
use crate::output;

const EXAMPLES: &str = "\
Examples:
  feedrail gen-dhchap-key
      A key of 32 random bytes.
  (umask 077; feedrail gen-dhchap-key > host.key)
      A key file that nobody else can read.
  feedrail gen-dhchap-key --hmac 3
      A key of 64 bytes, which host and target transform with SHA-512 and the host's NQN.
  feedrail gen-dhchap-key --hmac 1 -o json";

/// Makes a secret for in-band authentication (DH-HMAC-CHAP)
///
/// Prints one line, DHHC-1:HH:...:, which nvme-cli, the Linux kernel and SPDK understand too. The
/// same line is configured at the host and at the target. HH is the hash function with which both
/// transform the secret and the NQN of its owner to a key, 00 for none.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct GenDhchapKey {
    /// Transformation of the secret: 0 none, 1 SHA-256, 2 SHA-384, 3 SHA-512
    #[arg(short = 'm', long, value_name = "0..3", default_value_t = 0, value_parser = clap::value_parser!(u8).range(0..=3))]
    hmac: u8,
    /// Length of the secret in bytes: 32, 48 or 64 [default: that of the hash function, else 32]
    #[arg(short = 'l', long, value_name = "BYTES")]
    key_length: Option<usize>,
    /// Secret in hexadecimal, instead of a random one. Other users can see it while the command
    /// runs
    #[arg(short = 's', long, value_name = "HEX")]
    secret: Option<String>,
    /// Accepted for scripts written for nvme-cli, and without effect: whoever uses the secret
    /// transforms it
    #[arg(short = 'n', long, value_name = "NQN")]
    nqn: Option<Nqn>,
    #[command(flatten)]
    output: Output,
}

impl GenDhchapKey {
    pub(crate) fn run(&self) -> Result<()> {
        if self.nqn.is_some() {
            output::note("feedrail: --nqn has no effect: host and target transform the secret");
        }
        let transformation = Transformation::of(self.hmac).context("--hmac is 0 to 3")?;
        let secret = match &self.secret {
            Some(text) => self.given(transformation, text)?,
            None => self.drawn(transformation)?,
        };
        let key = secret.to_representation();
        match self.output.output_format {
            Format::Normal => output::print(&key).and_then(|()| output::print("\n")),
            Format::Json => output::print(&output::json(&json!({
                "key": *key,
                "hmac": self.hmac,
                "length": secret.length(),
            }))),
        }
    }

    fn drawn(&self, transformation: Transformation) -> Result<Secret> {
        let length = self.key_length.unwrap_or(transformation.usual_bytes());
        let mut failure = None;
        let secret = Secret::generate(transformation, length, &mut |bytes| {
            if let Err(error) = rdma::fill_random(bytes) {
                failure = Some(error);
            }
        });
        match failure {
            Some(error) => bail!("no random numbers from the kernel: {error}"),
            None => secret.context("--key-length is 32, 48 or 64"),
        }
    }

    fn given(&self, transformation: Transformation, text: &str) -> Result<Secret> {
        let bytes = hexadecimal(text)?;
        if let Some(length) = self.key_length {
            let given = bytes.len();
            ensure!(length == given, "--key-length is {length}, but --secret has {given} bytes");
        }
        Secret::new(transformation, &bytes).context("--secret has 64, 96 or 128 digits")
    }
}

fn hexadecimal(text: &str) -> Result<Zeroizing<Vec<u8>>> {
    ensure!(text.len().is_multiple_of(2), "--secret has an odd number of digits");
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let bytes: Option<Vec<u8>> = text
        .as_bytes()
        .chunks_exact(2)
        .map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8))
        .collect();
    bytes.map(Zeroizing::new).context("--secret has a character that is no hexadecimal digit")
}
