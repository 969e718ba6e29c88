//! A host that proves its name by a key, for reads on authenticated queues.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use feedrail_auth::{
    AuthOffer, HashFunction, HostAuth, HostSetup, HostStep, Parties, Secret, SequenceNumbers,
    Transformation,
};
use nvme_proto::auth::{AuthTransaction, AuthenticationReceive, AuthenticationSend};
use nvme_proto::{HostNqn, Nqn};
use tempfile::NamedTempFile;

use crate::{LogicWorld, lent};

const MESSAGE_BYTES: usize = 4096;

/// A host, and the file with its key that the target reads.
pub(crate) struct AuthenticatedHost {
    parties: Parties,
    secret: Secret,
    key_file: NamedTempFile,
}

impl AuthenticatedHost {
    pub(crate) fn new(host: Nqn, subsystem: Nqn) -> Result<Self> {
        let secret = Secret::new(Transformation::Hmac(HashFunction::Sha256), &[7; 32])?;
        let key_file = NamedTempFile::new()?;
        fs::set_permissions(key_file.path(), Permissions::from_mode(0o600))?;
        fs::write(key_file.path(), secret.to_representation().as_str())?;
        Ok(Self { parties: Parties { host: HostNqn(host), subsystem }, secret, key_file })
    }

    /// Returns the table of the host in the configuration of its subsystem.
    pub(crate) fn configuration(&self) -> String {
        let (host, path) = (&self.parties.host.0, self.key_file.path());
        format!(
            "authentication = \"required\"\n\
             [[subsystem.host]]\nnqn = \"{host}\"\ndhchap_key = {path:?}\n"
        )
    }

    /// Authenticates a queue by one transaction without a group.
    pub(crate) fn authenticate(&self, world: &mut LogicWorld, queue: usize) -> Result<()> {
        let setup = HostSetup {
            parties: self.parties,
            host_key: self.secret.key_for(&self.parties.host.0),
            controller_key: None,
            offer: AuthOffer::new(&[HashFunction::Sha256], &[None])
                .context("nothing is offered")?,
            sequences: SequenceNumbers::new(&mut not_random),
        };
        let (mut transaction, mut step) = HostAuth::begin(Arc::new(setup), AuthTransaction(1));
        loop {
            step = match step {
                HostStep::Send(message) => {
                    let send = AuthenticationSend { length_bytes: message.len() as u32 };
                    world.command(queue, &send.to_sqe().with_data(lent(message.leak())))?;
                    transaction.sent()
                }
                HostStep::Receive => {
                    let receive = AuthenticationReceive { length_bytes: MESSAGE_BYTES as u32 };
                    let data = vec![0; MESSAGE_BYTES].leak();
                    world.command(queue, &receive.to_sqe().with_data(lent(data)))?;
                    transaction.received(data, &mut not_random)
                }
                HostStep::Compute(work) => {
                    transaction.computed(work.run(&mut not_random), &mut not_random)
                }
                HostStep::Finish(result) => {
                    result.context("the target refused the host")?;
                    return Ok(());
                }
            };
        }
    }
}

/// Fills bytes so that all runs are alike.
fn not_random(bytes: &mut [u8]) {
    bytes.fill(7);
}
