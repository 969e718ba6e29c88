//! Limits of a controller, and what this initiator requires of it.

use nvme_proto::Cntlid;
use nvme_proto::identify::{ControllerType, Identify, IdentifyController, RangeListOffer};
use nvme_proto::nvm::ListedRange;

use crate::memory::bounce::CHUNK_BYTES;
use crate::types::error::{Error, ErrorKind};

/// Upper limit of MDTS, so that a long range is split into several commands in flight.
const TRANSFER_BYTES: u64 = 1 << 20;

/// Most data in a command capsule.
const IN_CAPSULE_BYTES: u64 = 16 << 10;

/// Most ranges that one command lists.
pub(crate) const MAX_LISTED_RANGES: u16 = 64;

/// Limits of a controller on its current connection.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct ControllerLimits {
    /// Controller identifier (CNTLID), assigned in the Connect response.
    pub cntlid: Cntlid,
    /// Number of connected I/O queues.
    pub io_queues: u16,
    /// Commands that may be in flight on an I/O queue.
    pub queue_depth: u16,
    /// Most bytes that a command transfers.
    pub max_transfer_bytes: u64,
    /// Most bytes of data in an I/O command capsule.
    pub in_capsule_bytes: u32,
    /// Whether the controller has a volatile write cache, without which Flush has no effect.
    pub volatile_write_cache: bool,
    /// Command Quiesce Time (CQT) in milliseconds, 0 if it is not reported: how long writes may
    /// still be executed after the target has detected the loss of this host.
    pub command_quiesce_ms: u16,
    /// Maximum Outstanding Commands (MAXCMD) of a queue.
    pub(crate) max_commands: u16,
    /// Limits of Read Ranges, which reads several ranges of a plan; `None` if the controller does
    /// not offer it.
    pub(crate) range_lists: Option<RangeListOffer>,
}

impl ControllerLimits {
    /// Limits of a controller before it is identified.
    pub(crate) const NONE: Self = Self {
        cntlid: Cntlid::DYNAMIC,
        io_queues: 0,
        queue_depth: 0,
        max_transfer_bytes: 4096,
        in_capsule_bytes: 0,
        volatile_write_cache: false,
        command_quiesce_ms: 0,
        max_commands: u16::MAX,
        range_lists: None,
    };

    /// Takes the limits that Identify Controller reports. MDTS is scaled by the page size.
    pub(crate) fn take(&mut self, identify: &IdentifyController, page_shift: u8, discovery: bool) {
        let mdts = identify.max_transfer_bytes(page_shift).unwrap_or(u64::MAX);
        self.max_transfer_bytes = mdts.min(TRANSFER_BYTES);
        self.volatile_write_cache = identify.vwc.present();
        self.command_quiesce_ms = identify.cqt.get();
        self.max_commands = match identify.maxcmd.get() {
            0 => u16::MAX,
            maxcmd => maxcmd,
        };
        let offers_in_capsule = identify.sgls.offset() && identify.icdoff.get() == 0;
        self.in_capsule_bytes = match offers_in_capsule && !discovery {
            // At most 16 KiB.
            true => identify.in_capsule_bytes().min(IN_CAPSULE_BYTES) as u32,
            false => 0,
        };
        // As many as fit a capsule, of those that a list may have here.
        let fit = self.in_capsule_bytes as usize / size_of::<ListedRange>();
        let ranges = fit.min(MAX_LISTED_RANGES.into()) as u16;
        self.range_lists = identify
            .range_list_offer()
            .map(|offer| RangeListOffer { ranges: offer.ranges.min(ranges), ..offer })
            .filter(|offer| offer.ranges > 0);
    }
}

/// Checks that a controller supports what this initiator requires, such as keyed SGLs (RDMA
/// Transport, "Capsules and SGLs"; Base, "Identify Controller").
pub(crate) fn check_controller(
    identify: &IdentifyController,
    cntlid: Cntlid,
    discovery: bool,
) -> Result<(), Error> {
    if identify.cntlid() != cntlid && !discovery {
        return Err(ErrorKind::Protocol("Identify and Connect name different controllers").into());
    }
    let is_discovery = identify.cntrltype == ControllerType::DISCOVERY;
    if discovery {
        return Ok(());
    }
    if is_discovery || identify.cntrltype == ControllerType::ADMINISTRATIVE {
        return Err(ErrorKind::Unsupported("I/O to a controller that has no I/O queues").into());
    }
    if identify.sgls.supported() == 0 || !identify.sgls.keyed() {
        return Err(ErrorKind::Unsupported("a controller without keyed SGLs").into());
    }
    if identify.ioccsz.get() < 4 || identify.iorcsz.get() < 1 {
        return Err(ErrorKind::Protocol("capsules are smaller than their entries").into());
    }
    let transfer = (12..64).contains(&(12 + u32::from(identify.mdts)));
    if !transfer || CHUNK_BYTES < Identify::DATA_BYTES {
        return Err(ErrorKind::Malformed("the maximum data transfer size").into());
    }
    Ok(())
}
