//! Objects in a namespace of a pool, and calls on them that wait for the cluster.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::sync::Arc;

use rustix::io::Errno;

use crate::cluster::{Cluster, Pool};
use crate::error::{Error, check};
use crate::functions::{CREATE_EXCLUSIVE, ListContext};

/// librados returns the place of the first difference found by `cmpext` as a number below this one.
const DIFFERENT: i32 = -4095;

/// The objects in a namespace of a pool.
pub struct Objects {
    pub(crate) pool: Pool,
    name: String,
}

impl Objects {
    /// The objects in this namespace of this pool.
    ///
    /// # Errors
    /// If there is no such pool.
    pub fn open(cluster: &Arc<Cluster>, pool: &str, namespace: &str) -> Result<Arc<Self>, Error> {
        let name = format!("{pool}/{namespace}");
        Ok(Arc::new(Self { pool: cluster.pool(pool, namespace)?, name }))
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Arc<Cluster> {
        &self.pool.cluster
    }

    /// The number of the pool.
    #[must_use]
    pub fn pool_id(&self) -> i64 {
        self.pool.id()
    }

    /// The first bytes of an object, `room` at most; `None` if there is no such object. Waits for the cluster.
    ///
    /// # Errors
    /// The failed call.
    pub fn read(&self, object: &CStr, room: usize) -> Result<Option<Vec<u8>>, Error> {
        let mut bytes = vec![0_u8; room];
        let functions = &self.pool.cluster.library().functions;
        let (context, place) = (self.pool.context, bytes.as_mut_ptr().cast::<c_char>());
        // SAFETY: a context that lives, a C string, and a place of this length.
        let length = unsafe { (functions.rados_read)(context, object.as_ptr(), place, room, 0) };
        if length == -Errno::NOENT.raw_os_error() {
            return Ok(None);
        }
        let length = check(length, || format!("read the object {}", self.named(object)))?;
        bytes.truncate(usize::try_from(length).expect("checked"));
        Ok(Some(bytes))
    }

    /// Removes an object, if it is there. Waits for the cluster.
    ///
    /// # Errors
    /// The failed call.
    pub fn remove(&self, object: &CStr) -> Result<(), Error> {
        let functions = &self.pool.cluster.library().functions;
        // SAFETY: a context that lives, and a C string.
        let removed = unsafe { (functions.rados_remove)(self.pool.context, object.as_ptr()) };
        if removed != -Errno::NOENT.raw_os_error() {
            check(removed, || format!("remove the object {}", self.named(object)))?;
        }
        Ok(())
    }

    /// Gives an object these bytes, if it begins with `expected`, or with `None` is not there. Returns whether it did.
    /// Both are one step. Waits for the cluster.
    ///
    /// # Errors
    /// The failed call.
    pub fn replace(&self, object: &CStr, expected: Option<&[u8]>, bytes: &[u8]) -> Result<bool, Error> {
        let functions = &self.pool.cluster.library().functions;
        // SAFETY: the operation is used here only, and released once; the bytes stay until it was carried out.
        let result = unsafe {
            let operation = (functions.rados_create_write_op)();
            match expected {
                None => (functions.rados_write_op_create)(operation, CREATE_EXCLUSIVE, std::ptr::null()),
                Some(expected) => {
                    let (start, length) = (expected.as_ptr().cast(), expected.len());
                    (functions.rados_write_op_cmpext)(operation, start, length, 0, std::ptr::null_mut());
                }
            }
            (functions.rados_write_op_write_full)(operation, bytes.as_ptr().cast(), bytes.len());
            let context = self.pool.context;
            let result = (functions.rados_write_op_operate)(
                operation,
                context,
                object.as_ptr(),
                std::ptr::null_mut(),
                0,
            );
            (functions.rados_release_write_op)(operation);
            result
        };
        let is_other = match expected {
            None => result == -Errno::EXIST.raw_os_error(),
            Some(_) => result <= DIFFERENT || result == -Errno::NOENT.raw_os_error(),
        };
        if is_other {
            return Ok(false);
        }
        check(result, || format!("write the object {}", self.named(object)))?;
        Ok(true)
    }

    /// Calls `each` with the names of all objects, until it returns `false`. Waits for the cluster, again and again.
    ///
    /// # Errors
    /// The failed call.
    pub fn list(&self, mut each: impl FnMut(&CStr) -> bool) -> Result<(), Error> {
        let functions = &self.pool.cluster.library().functions;
        let mut list: ListContext = std::ptr::null_mut();
        // SAFETY: a context that lives, and a place for the list.
        let opened = unsafe { (functions.rados_nobjects_list_open)(self.pool.context, &raw mut list) };
        check(opened, || format!("list the objects of {}", self.name))?;
        let result = loop {
            let mut name: *const c_char = std::ptr::null();
            let (locator, namespace) = (std::ptr::null_mut(), std::ptr::null_mut());
            // SAFETY: an open list, and a place for the name. The others are not asked for.
            let next =
                unsafe { (functions.rados_nobjects_list_next)(list, &raw mut name, locator, namespace) };
            if next == -Errno::NOENT.raw_os_error() {
                break Ok(());
            }
            if let Err(error) = check(next, || format!("list the objects of {}", self.name)) {
                break Err(error);
            }
            // SAFETY: a C string, which stays until the next call.
            if !each(unsafe { CStr::from_ptr(name) }) {
                break Ok(());
            }
        };
        // SAFETY: opened above.
        unsafe { (functions.rados_nobjects_list_close)(list) };
        result
    }

    fn named(&self, object: &CStr) -> String {
        format!("{}/{}", self.name, CString::from(object).to_string_lossy())
    }
}

impl fmt::Debug for Objects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Objects({})", self.name)
    }
}
