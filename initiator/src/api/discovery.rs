//! Discovery: the subsystems at an address.

use std::net::SocketAddr;
use std::sync::Arc;

use nvme_proto::log::{DiscoveryEntry, DiscoveryHeader, GetLogPage, LogId};
use nvme_proto::{Nqn, view};

use crate::api::controller::Controller;
use crate::api::controller_handle::ControllerHandle;
use crate::driver::host_state::Inner;
use crate::engine::controller::RawData;
use crate::types::error::{Error, ErrorKind, SubsystemAddress};
use crate::types::options::ControllerOptions;

/// The discovery log page, all of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryLog {
    /// Generation counter (GENCTR): it changes when the log page does.
    pub genctr: u64,
    /// The entries, as the controller gave them.
    pub entries: Vec<DiscoveryEntry>,
}

/// The most entries that are read: far more than there are subsystems anywhere.
const MAX_ENTRIES: u64 = 1 << 16;

/// How often a page that changes while it is read is read again.
const ATTEMPTS: usize = 10;

const ENTRY_BYTES: u64 = size_of::<DiscoveryEntry>() as u64;
const HEADER_BYTES: u64 = size_of::<DiscoveryHeader>() as u64;

pub(crate) async fn discover(host: Arc<Inner>, address: SocketAddr) -> Result<DiscoveryLog, Error> {
    let target = SubsystemAddress { address, nqn: Nqn::DISCOVERY };
    let options = ControllerOptions { io_queues: 0, keep_alive_ms: 0, ..host.controller.clone() };
    let controller = Controller::connect(&host, target, options)?.await?;
    let handle = controller.handle();
    for _ in 0..ATTEMPTS {
        if let Some(log) = read(handle).await? {
            return Ok(log);
        }
    }
    Err(Error::from(ErrorKind::Protocol("the discovery log page never stops changing"))
        .of_target(&handle.target))
}

/// Reads the page once; `None` if it changed meanwhile.
async fn read(handle: &ControllerHandle) -> Result<Option<DiscoveryLog>, Error> {
    let header = header(handle).await?;
    let (genctr, count) = (header.genctr.get(), header.numrec.get());
    if header.recfmt.get() != 0 {
        return Err(ErrorKind::Unsupported("the format of the discovery log page").into());
    }
    if count > MAX_ENTRIES {
        return Err(ErrorKind::Unsupported("a discovery log page of that many entries").into());
    }
    let mut entries = Vec::new();
    if count > 0 {
        // Memory grows with what arrives, not with what was announced.
        let page = GetLogPage::new(LogId::DISCOVERY, count * ENTRY_BYTES).at(HEADER_BYTES);
        let bytes = handle.log_page(page).await?;
        for entry in bytes.chunks_exact(ENTRY_BYTES as usize) {
            entries.push(*view::<DiscoveryEntry>(entry)?);
        }
    }
    let again = self::header(handle).await?;
    Ok((again.genctr.get() == genctr).then_some(DiscoveryLog { genctr, entries }))
}

async fn header(handle: &ControllerHandle) -> Result<DiscoveryHeader, Error> {
    let page = GetLogPage::new(LogId::DISCOVERY, HEADER_BYTES);
    let data = RawData::to_host(HEADER_BYTES);
    let sqe = nvme_proto::AdminCommand::GetLogPage(page).to_sqe();
    let reply = handle.ask(sqe, data).await?;
    Ok(*view(&reply.data)?)
}
