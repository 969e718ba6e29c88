//! Memory that targets read and write directly.
#![expect(unsafe_code, reason = "hands registered memory out as byte slices")]

mod host_memory;

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::mem;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::{Arc, Mutex};

use rdma::Provider;

pub use self::host_memory::Grant;
pub(crate) use self::host_memory::{CurrentScope, ErasedScope, Keys, RegistrationScope};
use self::host_memory::{HostMemory, MemoryAccess, MemoryAddress, MemoryOwner};
use crate::memory::pages::Pages;

/// An owned part of registered memory: the destination of a read or the source of a write.
///
/// A slice is moved into an operation and returned with its result, so that its memory is not
/// accessible while a command may change it. Slices can be split and joined without a copy, like a
/// `BytesMut`; the memory is deregistered and freed when its last slice is dropped.
///
/// Under [`Grant::PerCommand`] no target has access to a slice outside an operation, and its bytes
/// can be borrowed: [`RegionSlice::as_slice`]. Under [`Grant::Persistent`] a target that violates
/// the protocol may write them at any time, so that a reference would be unsound. Such bytes are
/// copied ([`RegionSlice::copy_out`], [`RegionSlice::copy_in`]), deregistered
/// ([`RegionSlice::into_vec`]), or borrowed by callers who trust the target with the soundness of
/// their process ([`RegionSlice::as_slice_unchecked`]). [`RegionSlice::bytes`] borrows or copies,
/// depending on the grant.
///
/// A slice is registered at its first use with each controller, until the controller is closed or
/// the region is freed. Memory that is used with several controllers has a registration for each;
/// an RDMA device counts each against the limit on locked memory.
pub struct RegionSlice {
    region: Arc<HostMemory>,
    /// Address of the first byte.
    address: MemoryAddress,
    length: usize,
    /// Copy of the region's grant.
    grant: Grant,
    /// Keys of the last use. Another use in the same protection domain need not lock the region.
    known: Option<Keys>,
}

impl RegionSlice {
    /// Allocates zeroed, page-aligned memory.
    ///
    /// # Errors
    /// The system has not enough memory.
    pub fn allocate(length_bytes: usize, grant: Grant) -> io::Result<Self> {
        let pages = Pages::dense(length_bytes)?;
        let address = pages.address();
        Ok(Self::whole(address, length_bytes, grant, MemoryOwner::Pages { _pages: pages }))
    }

    /// Takes ownership of a vector, which [`RegionSlice::into_vec`] returns.
    pub fn from_vec(mut bytes: Vec<u8>, grant: Grant) -> Self {
        let address = NonNull::new(bytes.as_mut_ptr()).expect("a vector's pointer is not null");
        let length = bytes.len();
        Self::whole(address, length, grant, MemoryOwner::Vec(bytes))
    }

    /// Uses memory of the caller, such as that of a tensor. `release` is called once, on any
    /// thread, when the last slice was dropped and every device has deregistered the memory; a
    /// panic is caught and logged. If a device fails to deregister it, the memory stays accessible
    /// to its targets, and `release` is never called.
    ///
    /// # Safety
    /// Until `release` is called, `length` bytes at `address` must stay mapped, readable and
    /// writable.
    ///
    /// Others may keep and use pointers to the memory, with these exceptions. Bytes of a slice in
    /// an operation must not be written, nor read if they are its destination. Accesses to other
    /// bytes must not race with methods of the slice that read or write them, and must not violate
    /// the guarantees of references that it returns. Under [`Grant::Persistent`] a target that
    /// violates the protocol may write at any time: no reference to the memory may exist after its
    /// registration, unless the target is trusted not to.
    pub unsafe fn from_raw(
        address: NonNull<u8>,
        length: usize,
        grant: Grant,
        release: impl FnOnce() + Send + 'static,
    ) -> Self {
        Self::whole(
            address,
            length,
            grant,
            MemoryOwner::Foreign(Mutex::new(Some(Box::new(release)))),
        )
    }

    /// Uses memory of the caller like [`RegionSlice::from_raw`], as the source of writes only:
    /// devices and targets cannot write to it, so that it may be mapped read-only. No method that
    /// writes may be called on such a slice, so it never leaves the crate.
    ///
    /// # Safety
    /// Until `release` is called, `length` bytes at `address` must stay mapped and readable. Bytes
    /// of a slice in an operation must not be written.
    pub(crate) unsafe fn from_raw_read_only(
        address: NonNull<u8>,
        length: usize,
        release: impl FnOnce() + Send + 'static,
    ) -> Self {
        let owner = MemoryOwner::Foreign(Mutex::new(Some(Box::new(release))));
        Self::of_memory(address, length, Grant::Persistent, MemoryAccess::ReadOnly, owner)
    }

    fn whole(address: NonNull<u8>, length: usize, grant: Grant, owner: MemoryOwner) -> Self {
        Self::of_memory(address, length, grant, MemoryAccess::ReadWrite, owner)
    }

    fn of_memory(
        address: NonNull<u8>,
        length: usize,
        grant: Grant,
        access: MemoryAccess,
        owner: MemoryOwner,
    ) -> Self {
        let address = MemoryAddress(address);
        let region = Arc::new(HostMemory::new(address, length, grant, access, owner));
        Self { region, address, length, grant, known: None }
    }

    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the access that targets get.
    pub fn grant(&self) -> Grant {
        self.grant
    }

    /// Returns whether the memory can only be the source of writes.
    pub(crate) fn is_read_only(&self) -> bool {
        self.region.access == MemoryAccess::ReadOnly
    }

    /// Splits the slice: `self` keeps the first `at` bytes, and the others are returned.
    ///
    /// # Panics
    /// `at` is greater than the length.
    #[must_use = "dropping the rest gives it up until the whole region is dropped"]
    pub fn split_off(&mut self, at: usize) -> Self {
        assert!(at <= self.length, "split beyond the end of a slice");
        // SAFETY: at most one past the end of the slice, which is within the region's memory.
        let address = MemoryAddress(unsafe { self.address.0.add(at) });
        let length = self.length - at;
        self.length = at;
        Self { region: Arc::clone(&self.region), address, length, ..*self }
    }

    /// Splits the slice into pieces of `length_bytes`; the last may be shorter.
    ///
    /// # Panics
    /// The argument `length_bytes` is zero.
    pub fn chunks(self, length_bytes: usize) -> impl Iterator<Item = Self> {
        assert!(length_bytes > 0, "pieces of no length");
        let mut rest = Some(self);
        std::iter::from_fn(move || {
            let mut piece = rest.take()?;
            if piece.length > length_bytes {
                rest = Some(piece.split_off(length_bytes));
            }
            Some(piece)
        })
    }

    /// Joins two adjacent slices of a region.
    ///
    /// # Errors
    /// Both slices, if `next` does not begin at the end of `self`.
    pub fn join(self, next: Self) -> Result<Self, (Self, Self)> {
        let adjacent = Arc::ptr_eq(&self.region, &next.region)
            && self.address() + self.length as u64 == next.address();
        if !adjacent {
            return Err((self, next));
        }
        Ok(Self { length: self.length + next.length, ..self })
    }

    /// Deregisters and returns the vector that was passed to [`RegionSlice::from_vec`].
    ///
    /// # Errors
    /// `self`, if it is not the only slice of all bytes of a vector, or a device fails to
    /// deregister it.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        let whole =
            self.length == self.region.length && matches!(*self.region.owner, MemoryOwner::Vec(_));
        if !whole {
            return Err(self);
        }
        match Arc::try_unwrap(self.region) {
            // Deregistered before the vector is accessible.
            Ok(mut region) => match (region.deregister(), &mut *region.owner) {
                (Ok(()), MemoryOwner::Vec(bytes)) => Ok(mem::take(bytes)),
                _ => Err(Self { region: Arc::new(region), ..self }),
            },
            Err(region) => Err(Self { region, ..self }),
        }
    }

    /// Returns the address of the first byte, for SGL descriptors and work requests.
    pub(crate) fn address(&self) -> u64 {
        self.address.0.addr().get() as u64
    }

    /// Returns the address of the first byte for reading. It is valid while a slice of the region
    /// exists, and may be used while this one is not in an operation.
    pub fn as_ptr(&self) -> *const u8 {
        self.address.0.as_ptr()
    }

    /// Returns the address of the first byte for writing, as [`RegionSlice::as_ptr`].
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.address.0.as_ptr()
    }

    /// Borrows the bytes; `None` under [`Grant::Persistent`].
    pub fn as_slice(&self) -> Option<&[u8]> {
        // SAFETY: between operations no window into the slice is open, and the region is not open
        // itself.
        (self.grant == Grant::PerCommand).then(|| unsafe { self.as_slice_unchecked() })
    }

    /// Borrows the bytes mutably; `None` under [`Grant::Persistent`].
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        // SAFETY: as in `as_slice`.
        (self.grant == Grant::PerCommand).then(|| unsafe { self.as_mut_slice_unchecked() })
    }

    /// Borrows the bytes without checking the grant.
    ///
    /// # Safety
    /// Under [`Grant::Persistent`], no target that has a key of the region may write to the slice
    /// while the reference exists: the caller trusts every target that slices of the region were
    /// used with.
    pub unsafe fn as_slice_unchecked(&self) -> &[u8] {
        // SAFETY: the bytes are within the region, which is mapped while `self.region` lives;
        // slices of one region never overlap and this one is not part of an operation, so that we
        // write to them only through `&mut self`, and targets do not (the caller's promise).
        unsafe { slice::from_raw_parts(self.address.0.as_ptr(), self.length) }
    }

    /// Borrows the bytes mutably without checking the grant.
    ///
    /// # Safety
    /// As for [`RegionSlice::as_slice_unchecked`]; nor may a target read them.
    pub unsafe fn as_mut_slice_unchecked(&mut self) -> &mut [u8] {
        // SAFETY: as in `as_slice_unchecked`, and `self` is borrowed exclusively.
        unsafe { slice::from_raw_parts_mut(self.address.0.as_ptr(), self.length) }
    }

    /// Returns the bytes: borrowed under [`Grant::PerCommand`], copied under [`Grant::Persistent`].
    pub fn bytes(&self) -> Cow<'_, [u8]> {
        self.as_slice().map_or_else(|| Cow::Owned(self.to_vec()), Cow::Borrowed)
    }

    /// Returns a copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut copy = vec![0; self.length];
        self.copy_out(0, &mut copy);
        copy
    }

    /// Copies bytes, from `at` on, to `to`.
    ///
    /// # Panics
    /// The bytes are not within the slice.
    pub fn copy_out(&self, at: usize, to: &mut [u8]) {
        let from = self.part(at, to.len()).cast::<u8>();
        // SAFETY: the source is mapped and this slice is in no operation; `to` is other memory,
        // since a slice is borrowed while a reference to its bytes lives. No reference to the
        // source is made: what a target writes there during the copy is as with a device's memory,
        // any mixture of bytes.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_mut_ptr(), to.len()) };
    }

    /// Copies bytes from `from` to the slice, from `at` on.
    ///
    /// # Panics
    /// The bytes do not fit the slice.
    pub fn copy_in(&mut self, at: usize, from: &[u8]) {
        let to = self.part(at, from.len()).cast::<u8>();
        // SAFETY: as in `copy_out`, the other way round.
        unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.as_ptr(), from.len()) };
    }

    /// Sets every byte to `byte`.
    pub fn fill(&mut self, byte: u8) {
        // SAFETY: as in `copy_out`, the other way round.
        unsafe { ptr::write_bytes(self.as_mut_ptr(), byte, self.length) };
    }

    /// Returns a pointer to a part of the slice, while commands may be in flight for other parts.
    /// The caller makes no reference of it.
    ///
    /// # Panics
    /// The part is not within the slice.
    pub(crate) fn part(&self, at: usize, length: usize) -> NonNull<[u8]> {
        assert!(at <= self.length && length <= self.length - at, "a part of the slice");
        // SAFETY: within the slice (checked).
        NonNull::slice_from_raw_parts(unsafe { self.address.0.add(at) }, length)
    }

    /// Returns the keys in a protection domain. The first call for a domain registers the memory,
    /// which may take long.
    pub(crate) fn keys(&mut self, scope: &dyn ErasedScope) -> io::Result<Keys> {
        match self.known {
            Some(keys) if keys.scope == scope.id() => Ok(keys),
            _ => {
                let keys = scope.keys(&self.region)?;
                self.known = Some(keys);
                Ok(keys)
            }
        }
    }

    /// Returns the keys like [`RegionSlice::keys`], for a shared slice; always locks the region.
    pub(crate) fn shared_keys(&self, scope: &dyn ErasedScope) -> io::Result<Keys> {
        scope.keys(&self.region)
    }

    /// Returns another slice of the same bytes, which keeps the memory allocated. It is for an
    /// operation with no concurrent use of these bytes, which claims of a [`Region`](crate::Region)
    /// guarantee.
    ///
    /// # Panics
    /// The bytes are not within the slice.
    pub(crate) fn alias(&self, at: usize, length: usize) -> Self {
        let address = MemoryAddress(self.part(at, length).cast());
        Self { region: Arc::clone(&self.region), address, length, grant: self.grant, known: None }
    }

    /// Registers the memory in a protection domain, unless it is registered there.
    pub(crate) fn register(&self, scope: &dyn ErasedScope) -> io::Result<()> {
        scope.keys(&self.region).map(drop)
    }

    /// Calls `with` with the registration in a domain, for which [`RegionSlice::keys`] was called
    /// before.
    pub(crate) fn with_registration<P: Provider, T>(
        &self,
        scope: &RegistrationScope<P>,
        with: impl FnOnce(&P::Region) -> T,
    ) -> Option<T> {
        self.region.with_registration(scope, with)
    }
}

impl fmt::Debug for RegionSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionSlice")
            .field("address", &self.address.0)
            .field("length", &self.length)
            .field("grant", &self.grant)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
