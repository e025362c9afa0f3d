//! The libraries, loaded once per process and never unloaded.

use std::ffi::{CStr, c_int, c_void};
use std::sync::OnceLock;

use crate::error::Error;
use crate::functions::Functions;

/// librados and librbd.
pub struct Library {
    pub(crate) functions: Functions,
}

/// A library's name in messages, and its package.
fn file_of(library: &str) -> (&'static str, &'static CStr, &'static str) {
    match library {
        "librados" => ("librados.so.2", c"librados.so.2", "librados2"),
        _ => ("librbd.so.1", c"librbd.so.1", "librbd1"),
    }
}

impl Library {
    /// The libraries of this machine. The first call loads them, which starts no thread.
    ///
    /// # Errors
    /// [`Error::NoLibrary`], [`Error::OldLibrary`].
    pub fn load() -> Result<&'static Self, Error> {
        static LOADED: OnceLock<Library> = OnceLock::new();
        if let Some(library) = LOADED.get() {
            return Ok(library);
        }
        let library = Self::find()?;
        Ok(LOADED.get_or_init(|| library))
    }

    fn find() -> Result<Self, Error> {
        // librbd first: who lacks both needs the package of the one that brings the other.
        let librbd = open("librbd")?;
        let librados = open("librados")?;
        let find = |library: &'static str, name: &'static CStr| {
            let handle = if library == "librados" { librados } else { librbd };
            // SAFETY: the handle is open, and the name a C string.
            let address = unsafe { libc::dlsym(handle, name.as_ptr()) };
            if address.is_null() {
                let function = name.to_string_lossy().into_owned();
                return Err(Error::OldLibrary { library: file_of(library).0, function });
            }
            Ok(address)
        };
        // SAFETY: functions of these names have these prototypes in every version of the two libraries: their file names
        // have the number of the interface. A test compares them with the installed headers.
        let functions = unsafe { Functions::found(find)? };
        Ok(Self { functions })
    }

    /// The version of librbd.
    #[must_use]
    pub fn version(&self) -> (i32, i32, i32) {
        let (mut major, mut minor, mut extra): (c_int, c_int, c_int) = (0, 0, 0);
        // SAFETY: three places for numbers.
        unsafe { (self.functions.rbd_version)(&raw mut major, &raw mut minor, &raw mut extra) };
        (major, minor, extra)
    }
}

/// Opens a library for good.
fn open(library: &'static str) -> Result<*mut c_void, Error> {
    let (file, name, package) = file_of(library);
    // SAFETY: a C string. The library's own initializers run, as in any program linked to it.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        // SAFETY: the message of the failed call, which stays until this thread's next one.
        let message = unsafe { libc::dlerror() };
        let why = if message.is_null() {
            String::new()
        } else {
            // SAFETY: not null, so a C string.
            unsafe { CStr::from_ptr(message) }.to_string_lossy().into_owned()
        };
        return Err(Error::NoLibrary { library: file, package, why });
    }
    Ok(handle)
}
