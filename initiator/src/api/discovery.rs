//! Discovery: the subsystems at an address.

use std::net::SocketAddr;
use std::sync::Arc;

use nvme_proto::log::{DiscoveryEntry, DiscoveryHeader, GetLogPage, LogId};
use nvme_proto::{Nqn, view};

use crate::api::controller::Controller;
use crate::api::controller_handle::ControllerHandle;
use crate::api::pending::Pending;
use crate::driver::host_state::Inner;
use crate::engine::change_count::ChangeKind;
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

/// A connection to a discovery service that lasts, and learns when the log page changes: a
/// persistent discovery controller (Base, 3.1.3.3.1). A connection that is lost is made again.
///
/// Cheap to clone. The connection ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct DiscoveryController {
    controller: Controller,
}

impl DiscoveryController {
    pub(crate) async fn connect(host: Arc<Inner>, address: SocketAddr) -> Result<Self, Error> {
        let keep_alive_ms = match host.controller.keep_alive_ms {
            // It is to be kept alive, though others of this host are not.
            0 => ControllerOptions::default().keep_alive_ms,
            timeout_ms => timeout_ms,
        };
        let options = ControllerOptions { keep_alive_ms, ..host.controller.clone() };
        Ok(Self { controller: connect(&host, address, options).await? })
    }

    /// Where the service is.
    pub fn address(&self) -> SocketAddr {
        self.controller.target().address
    }

    /// Reads the log page.
    pub fn log(&self) -> Pending<Result<DiscoveryLog, Error>> {
        let controller = self.controller.clone();
        let host = &self.controller.handle().host;
        Pending::new(host, async move { read_whole(controller.handle()).await })
    }

    /// Waits until the log page has another generation counter than `genctr`, or the service says
    /// by an event that it changed or is connected to again, and reads it: a service that was
    /// started again counts from zero. While the service cannot be reached, this waits for it.
    ///
    /// # Errors
    /// The service, or its answer, cannot be used.
    pub fn log_after(&self, genctr: u64) -> Pending<Result<DiscoveryLog, Error>> {
        let controller = self.controller.clone();
        let host = &self.controller.handle().host;
        Pending::new(host, async move {
            let handle = controller.handle();
            // The count now comes immediately, since it is never this one.
            let mut seen = handle.change(ChangeKind::DiscoveryLog, u64::MAX).await?;
            let mut told = false;
            loop {
                match read_whole(handle).await {
                    Ok(log) if told || log.genctr != genctr => return Ok(log),
                    Err(error) if !is_of_connection(&error) => return Err(error),
                    // It is read again after the next event or over the next connection.
                    Ok(_) | Err(_) => {}
                }
                seen = handle.change(ChangeKind::DiscoveryLog, seen).await?;
                told = true;
            }
        })
    }
}

/// Whether a command failed with its connection, after which there may be another.
fn is_of_connection(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionLost(_)
            | ErrorKind::Lost { .. }
            | ErrorKind::TimedOut { .. }
            | ErrorKind::Unreachable(_)
    )
}

async fn connect(
    host: &Arc<Inner>,
    address: SocketAddr,
    options: ControllerOptions,
) -> Result<Controller, Error> {
    let target = SubsystemAddress { address, nqn: Nqn::DISCOVERY };
    Controller::connect(host, target, ControllerOptions { io_queues: 0, ..options })?.await
}

pub(crate) async fn discover(host: Arc<Inner>, address: SocketAddr) -> Result<DiscoveryLog, Error> {
    let options = ControllerOptions { keep_alive_ms: 0, ..host.controller.clone() };
    let controller = connect(&host, address, options).await?;
    read_whole(controller.handle()).await
}

/// Reads the page until it is all of one generation.
async fn read_whole(handle: &ControllerHandle) -> Result<DiscoveryLog, Error> {
    for _ in 0..ATTEMPTS {
        if let Some(log) = read(handle).await? {
            return Ok(log);
        }
    }
    Err(Error::from(ErrorKind::Protocol("the discovery log page never stops changing"))
        .of_target(&handle.target))
}

/// Reads the page once; `None` if it changed in between.
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
