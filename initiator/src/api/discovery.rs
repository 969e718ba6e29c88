//! Discovery of the subsystems at an address.

use std::net::SocketAddr;
use std::sync::Arc;

use nvme_proto::log::{DiscoveryEntry, DiscoveryHeader, GetLogPage, LogId};
use nvme_proto::{Nqn, view};

use crate::api::controller::Controller;
use crate::api::controller_handle::ControllerHandle;
use crate::api::pending::Pending;
use crate::driver::host_state::Inner;
use crate::engine::change_count::ChangeKind;
use crate::engine::raw::RawData;
use crate::types::error::{Error, ErrorKind, SubsystemAddress};
use crate::types::options::ControllerOptions;

/// A Discovery Log Page, all of whose entries are of one generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiscoveryLog {
    /// Generation Counter (GENCTR), which changes with the log page.
    pub genctr: u64,
    /// Entries, in the order of the log page.
    pub entries: Vec<DiscoveryEntry>,
}

/// Most entries of a log page, far more than there are subsystems anywhere; a longer page is
/// rejected.
const MAX_ENTRIES: u64 = 1 << 16;

/// Attempts to read a log page whose Generation Counter changes.
const ATTEMPTS: usize = 10;

const ENTRY_BYTES: u64 = size_of::<DiscoveryEntry>() as u64;
const HEADER_BYTES: u64 = size_of::<DiscoveryHeader>() as u64;

/// A connection to a persistent discovery controller (Base, 3.1.3.3.1), which reports changes of
/// the log page. A connection that is lost is established again.
///
/// Cheap to clone. The connection ends when the last handle is dropped.
#[derive(Clone, Debug)]
pub struct DiscoveryController {
    controller: Controller,
}

impl DiscoveryController {
    pub(crate) async fn connect(host: Arc<Inner>, address: SocketAddr) -> Result<Self, Error> {
        let keep_alive_ms = match host.controller.keep_alive_ms {
            // A persistent connection needs Keep Alive, even if the other connections of the host
            // have none.
            0 => ControllerOptions::default().keep_alive_ms,
            timeout_ms => timeout_ms,
        };
        let options = ControllerOptions { keep_alive_ms, ..host.controller.clone() };
        Ok(Self { controller: connect(&host, address, options).await? })
    }

    /// Returns the address of the discovery service.
    pub fn address(&self) -> SocketAddr {
        self.controller.target().address
    }

    /// Reads the Discovery Log Page.
    pub fn log(&self) -> Pending<Result<DiscoveryLog, Error>> {
        let controller = self.controller.clone();
        let host = &self.controller.handle().host;
        Pending::new(host, async move { read_whole(controller.handle()).await })
    }

    /// Waits until the Generation Counter differs from `genctr`, the service reports a change by an
    /// Asynchronous Event, or the connection was established again, and reads the log page. The
    /// last case counts because a restarted service counts from zero. Without a connection it waits
    /// for the next one.
    ///
    /// # Errors
    /// The service was lost or cannot be used, or its log page is not valid.
    pub fn log_after(&self, genctr: u64) -> Pending<Result<DiscoveryLog, Error>> {
        let controller = self.controller.clone();
        let host = &self.controller.handle().host;
        Pending::new(host, async move {
            let handle = controller.handle();
            // Since no count is `u64::MAX`, this returns the present one immediately.
            let mut seen = handle.change(ChangeKind::DiscoveryLog, u64::MAX).await?;
            let mut told = false;
            loop {
                match read_whole(handle).await {
                    Ok(log) if told || log.genctr != genctr => return Ok(log),
                    Err(error) if !is_of_connection(&error) => return Err(error),
                    // The log page is read again after the next event or on the next connection.
                    Ok(_) | Err(_) => {}
                }
                seen = handle.change(ChangeKind::DiscoveryLog, seen).await?;
                told = true;
            }
        })
    }
}

/// Returns whether a command failed because its connection did, so that it may succeed on the next.
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

/// Reads the log page again until no entry can be of another generation.
async fn read_whole(handle: &ControllerHandle) -> Result<DiscoveryLog, Error> {
    for _ in 0..ATTEMPTS {
        if let Some(log) = read(handle).await? {
            return Ok(log);
        }
    }
    Err(Error::from(ErrorKind::Protocol("the discovery log page never stops changing"))
        .of_target(&handle.target))
}

/// Reads the log page once; `None` if its Generation Counter changed.
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
        // Memory is allocated for the entries that arrive, not for the announced number.
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
