//! libibverbs and librdmacm, loaded at run time.
//!
//! One binary starts on any Linux machine, uses verbs if the libraries are installed, and reports
//! the reason if not. The libraries are loaded on first use and never unloaded, since rdma-core
//! keeps global state and threads.
#![expect(unsafe_code, reason = "calls into libraries that are loaded at run time")]

use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::abi::*;

/// The reason why the libraries cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A library is missing or cannot be loaded.
    #[error(
        "{library} cannot be loaded ({reason}); it comes with rdma-core (Debian: libibverbs1 librdmacm1)"
    )]
    NoLibrary {
        /// File name of the library, for instance `libibverbs.so.1`.
        library: &'static str,
        /// The error of the dynamic linker, as text.
        reason: String,
    },
    /// A library lacks a function.
    #[error("{library} is broken or too old: it has no {symbol}; rdma-core 22 or later has it")]
    NoSymbol {
        /// File name of the library, for instance `libibverbs.so.1`.
        library: &'static str,
        /// The name of the missing function.
        symbol: &'static str,
    },
}

/// The functions of both libraries.
pub(crate) struct Library {
    pub(crate) verbs: Verbs,
    pub(crate) cm: RdmaCm,
}

/// Returns the libraries, loading them on the first call.
///
/// # Errors
/// The libraries are missing or unusable, which is normal on a machine without RDMA.
pub(crate) fn library() -> Result<&'static Library, LoadError> {
    static LIBRARY: OnceLock<Result<Library, LoadError>> = OnceLock::new();
    LIBRARY.get_or_init(load).as_ref().map_err(Clone::clone)
}

/// Loads the libraries if they are not loaded yet.
///
/// # Errors
/// The libraries are missing or unusable.
pub fn available() -> Result<(), LoadError> {
    library().map(|_| ())
}

#[cfg(not(feature = "link-rdma-core"))]
fn load() -> Result<Library, LoadError> {
    // In this order, since librdmacm needs libibverbs: the error of a broken libibverbs would
    // otherwise name librdmacm.
    let verbs = Verbs::load(&Object::open(c"libibverbs.so.1", "libibverbs.so.1")?)?;
    let cm = RdmaCm::load(&Object::open(c"librdmacm.so.1", "librdmacm.so.1")?)?;
    Ok(Library { verbs, cm })
}

#[cfg(feature = "link-rdma-core")]
fn load() -> Result<Library, LoadError> {
    let process = Object::process();
    Ok(Library { verbs: Verbs::load(&process)?, cm: RdmaCm::load(&process)? })
}

/// Build option for packagers: the binary links to the libraries, and their functions are looked up
/// in the process. One function of each is referenced, since the linker drops a library that
/// nothing refers to.
#[cfg(feature = "link-rdma-core")]
mod linked {
    use core::ffi::c_void;

    type Free = unsafe extern "C" fn(*mut *mut c_void);

    #[link(name = "ibverbs")]
    unsafe extern "C" {
        fn ibv_free_device_list(list: *mut *mut c_void);
    }

    #[link(name = "rdmacm")]
    unsafe extern "C" {
        fn rdma_free_devices(list: *mut *mut c_void);
    }

    #[used]
    static LIBIBVERBS: Free = ibv_free_device_list;
    #[used]
    static LIBRDMACM: Free = rdma_free_devices;
}

/// A loaded shared object.
struct Object {
    handle: *mut c_void,
    name: &'static str,
}

impl Object {
    #[cfg(not(feature = "link-rdma-core"))]
    fn open(file: &CStr, name: &'static str) -> Result<Self, LoadError> {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_NODELETE;
        // SAFETY: the name is a C string; the initialisers of rdma-core's libraries have no
        // preconditions.
        let handle = unsafe { libc::dlopen(file.as_ptr(), flags) };
        if handle.is_null() {
            return Err(LoadError::NoLibrary { library: name, reason: dynamic_linker_error() });
        }
        Ok(Self { handle, name })
    }

    #[cfg(feature = "link-rdma-core")]
    fn process() -> Self {
        Self { handle: libc::RTLD_DEFAULT, name: "this process" }
    }

    /// Looks up a function, first by its ABI version, since a library may contain several; null if
    /// it is missing.
    fn symbol(&self, name: &CStr, version: &CStr) -> *mut c_void {
        #[cfg(target_env = "gnu")]
        {
            // SAFETY: the handle is loaded and never unloaded; the names are C strings.
            let address = unsafe { libc::dlvsym(self.handle, name.as_ptr(), version.as_ptr()) };
            if !address.is_null() {
                return address;
            }
        }
        let _ = version;
        // SAFETY: as above.
        unsafe { libc::dlsym(self.handle, name.as_ptr()) }
    }
}

#[cfg(not(feature = "link-rdma-core"))]
fn dynamic_linker_error() -> String {
    // SAFETY: dlerror returns null or a C string that lives until the next dl call of this thread.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "unknown reason".to_owned();
    }
    // SAFETY: as above, and it is not null.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
}

/// A C string from an identifier or a literal.
macro_rules! c_name {
    ($name:ident) => {
        const { to_c_str(concat!(stringify!($name), "\0")) }
    };
    ($name:literal) => {
        const { to_c_str(concat!($name, "\0")) }
    };
}

macro_rules! functions {
    (
        $(#[$doc:meta])*
        $table:ident {
            $($name:ident @ $version:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*
        }
        optional {
            $($optional:ident @ $since:literal: fn($($oargument:ty),*) $(-> $oresult:ty)?;)*
        }
    ) => {
        $(#[$doc])*
        pub(crate) struct $table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            $(pub(crate) $optional: Option<unsafe extern "C" fn($($oargument),*) $(-> $oresult)?>,)*
        }

        impl $table {
            /// A table in which every function ends the process: a test replaces those that it
            /// means to be called.
            #[cfg(test)]
            pub(crate) fn absent() -> Self {
                Self {
                    $($name: {
                        unsafe extern "C" fn absent($(_: $argument),*) $(-> $result)? {
                            unreachable!(concat!("no caller uses ", stringify!($name)))
                        }
                        absent
                    },)*
                    $($optional: None,)*
                }
            }

            fn load(object: &Object) -> Result<Self, LoadError> {
                Ok(Self {
                    $($name: {
                        let address = object.symbol(c_name!($name), c_name!($version));
                        if address.is_null() {
                            let symbol = stringify!($name);
                            return Err(LoadError::NoSymbol { library: object.name, symbol });
                        }
                        // SAFETY: the library's header declares the function with this type, under
                        // this version.
                        unsafe {
                            core::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(address)
                        }
                    },)*
                    $($optional: {
                        let address = object.symbol(c_name!($optional), c_name!($since));
                        // SAFETY: as above; null becomes None.
                        unsafe {
                            core::mem::transmute::<
                                *mut c_void,
                                Option<unsafe extern "C" fn($($oargument),*) $(-> $oresult)?>,
                            >(address)
                        }
                    },)*
                })
            }
        }
    };
}

const fn to_c_str(text: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(text.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("the macro appends the only NUL"),
    }
}

functions! {
    /// The functions of libibverbs, with their symbol versions. Verbs that are inline functions in
    /// C are called through the operations of the context instead.
    Verbs {
        ibv_get_device_name @ "IBVERBS_1.1": fn(*mut ibv_device) -> *const c_char;
        ibv_query_device @ "IBVERBS_1.1": fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_get_async_event @ "IBVERBS_1.1": fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event @ "IBVERBS_1.1": fn(*mut ibv_async_event);
        ibv_alloc_pd @ "IBVERBS_1.1": fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd @ "IBVERBS_1.1": fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr @ "IBVERBS_1.1": fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr @ "IBVERBS_1.1": fn(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel @ "IBVERBS_1.0": fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel @ "IBVERBS_1.0": fn(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq @ "IBVERBS_1.1": fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq @ "IBVERBS_1.1": fn(*mut ibv_cq) -> c_int;
        ibv_resize_cq @ "IBVERBS_1.1": fn(*mut ibv_cq, c_int) -> c_int;
        ibv_get_cq_event @ "IBVERBS_1.1": fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events @ "IBVERBS_1.1": fn(*mut ibv_cq, c_uint);
        ibv_modify_qp @ "IBVERBS_1.1": fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    }
    optional {
        ibv_reg_mr_iova2 @ "IBVERBS_1.8": fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint) -> *mut ibv_mr;
        ibv_reg_dmabuf_mr @ "IBVERBS_1.12": fn(*mut ibv_pd, u64, usize, u64, c_int, c_int) -> *mut ibv_mr;
    }
}

functions! {
    /// The functions of librdmacm, with their symbol versions.
    RdmaCm {
        rdma_create_event_channel @ "RDMACM_1.0": fn() -> *mut rdma_event_channel;
        rdma_destroy_event_channel @ "RDMACM_1.0": fn(*mut rdma_event_channel);
        rdma_create_id @ "RDMACM_1.0": fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
        rdma_destroy_id @ "RDMACM_1.0": fn(*mut rdma_cm_id) -> c_int;
        rdma_bind_addr @ "RDMACM_1.0": fn(*mut rdma_cm_id, *const c_void) -> c_int;
        rdma_resolve_addr @ "RDMACM_1.0": fn(*mut rdma_cm_id, *const c_void, *const c_void, c_int) -> c_int;
        rdma_resolve_route @ "RDMACM_1.0": fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_create_qp @ "RDMACM_1.0": fn(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        rdma_destroy_qp @ "RDMACM_1.0": fn(*mut rdma_cm_id);
        rdma_connect @ "RDMACM_1.0": fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_listen @ "RDMACM_1.0": fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_accept @ "RDMACM_1.0": fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_reject @ "RDMACM_1.0": fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_disconnect @ "RDMACM_1.0": fn(*mut rdma_cm_id) -> c_int;
        rdma_get_cm_event @ "RDMACM_1.0": fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        rdma_ack_cm_event @ "RDMACM_1.0": fn(*mut rdma_cm_event) -> c_int;
        rdma_set_option @ "RDMACM_1.0": fn(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        rdma_get_devices @ "RDMACM_1.0": fn(*mut c_int) -> *mut *mut ibv_context;
        rdma_free_devices @ "RDMACM_1.0": fn(*mut *mut ibv_context);
    }
    optional {}
}

#[cfg(all(test, feature = "link-rdma-core"))]
mod tests {
    use super::*;

    #[test]
    fn linked_libraries_are_found_in_the_process() {
        assert_eq!(available(), Ok(()));
    }
}
