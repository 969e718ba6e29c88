//! [`Memory`] of `roce-proto`, implemented by the region table.

use roce_proto::Qpn;
use roce_proto::rc::{
    AccessError, BindWindow, LocalAccess, Memory, MemoryKey, PayloadPiece, RemoteAccess,
};

use super::regions::{Denied, DomainView};
use crate::{Access, RegionHandle, WindowHandle};

impl Memory for DomainView<'_> {
    fn check_local(
        &self,
        lkey: u32,
        addr: u64,
        length: u32,
        access: LocalAccess,
    ) -> Result<(), AccessError> {
        let access = match access {
            LocalAccess::Read => Access::NONE,
            LocalAccess::Write => Access::LOCAL_WRITE,
        };
        Ok(self.check_local(lkey, addr, u64::from(length), access)?)
    }

    fn check_remote(
        &self,
        qpn: Qpn,
        rkey: u32,
        addr: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), AccessError> {
        let access = match access {
            RemoteAccess::Read => Access::REMOTE_READ,
            RemoteAccess::Write => Access::REMOTE_WRITE,
        };
        Ok(self.check_remote(rkey, addr, u64::from(length), access, qpn.value())?)
    }

    fn place(&mut self, key: MemoryKey, addr: u64, payload: &[u8]) -> Result<(), AccessError> {
        match key {
            MemoryKey::Local { lkey } => self.place_local(lkey, addr, payload)?,
            MemoryKey::Remote { qpn, rkey } => {
                self.place_remote(rkey, addr, payload, qpn.value())?;
            }
        }
        Ok(())
    }

    fn bind(&mut self, qpn: Qpn, bind: &BindWindow) -> Result<(), AccessError> {
        let bind = crate::Bind {
            window: WindowHandle(bind.window),
            rkey: bind.rkey,
            region: RegionHandle(bind.region),
            addr: bind.addr,
            length: bind.length,
            access: Access::from_bits(bind.access),
        };
        Ok(DomainView::bind(self, qpn.value(), &bind)?)
    }

    fn invalidate(&mut self, qpn: Qpn, rkey: u32) -> Result<(), AccessError> {
        Ok(DomainView::invalidate(self, qpn.value(), rkey)?)
    }
}

/// The memory of a piece of a packet, borrowed while the section is open.
pub(super) fn bytes<'a>(view: DomainView<'a>, piece: &PayloadPiece) -> Result<&'a [u8], Denied> {
    match piece.key {
        MemoryKey::Local { lkey } => view.local(lkey, piece.addr, piece.length),
        MemoryKey::Remote { qpn, rkey } => view.remote(rkey, piece.addr, piece.length, qpn.value()),
    }
}

impl From<Denied> for AccessError {
    fn from(Denied: Denied) -> Self {
        Self
    }
}
