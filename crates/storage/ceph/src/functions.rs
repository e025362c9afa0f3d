//! The functions of librados and librbd that are used, with their C prototypes.

use std::ffi::{c_char, c_int, c_void};

/// `rados_t`.
pub(crate) type Rados = *mut c_void;
/// `rados_ioctx_t`.
pub(crate) type IoContext = *mut c_void;
/// `rbd_image_t`.
pub(crate) type RawImage = *mut c_void;
/// `rbd_image_options_t`.
pub(crate) type ImageOptions = *mut c_void;
/// `rbd_completion_t`.
pub(crate) type RawCompletion = *mut c_void;
/// `rbd_callback_t`, of which only the null value is used: completions come through the eventfd.
pub(crate) type Callback = *mut c_void;
/// `rados_completion_t`.
pub(crate) type ObjectCompletion = *mut c_void;
/// `rados_callback_t`.
pub(crate) type ObjectCallback = Option<unsafe extern "C" fn(ObjectCompletion, *mut c_void)>;
/// `rados_write_op_t`.
pub(crate) type WriteOperation = *mut c_void;
/// `rados_list_ctx_t`.
pub(crate) type ListContext = *mut c_void;
/// `time_t`.
pub(crate) type Time = libc::time_t;
/// The callback of `rbd_diff_iterate2`: offset and length of an extent in bytes, whether it has data, the caller's argument.
pub(crate) type OnExtent = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;
/// `librbd_progress_fn_t`.
pub(crate) type Progress = unsafe extern "C" fn(u64, u64, *mut c_void) -> c_int;

/// `EVENT_TYPE_EVENTFD`.
pub(crate) const EVENT_TYPE_EVENTFD: c_int = 2;
/// `RBD_LOCK_MODE_EXCLUSIVE`.
pub(crate) const LOCK_EXCLUSIVE: c_int = 0;
/// `RBD_WRITE_ZEROES_FLAG_THICK_PROVISION`.
pub(crate) const ZEROES_KEEP_SPACE: c_int = 1;
/// `LIBRADOS_CREATE_EXCLUSIVE`.
pub(crate) const CREATE_EXCLUSIVE: c_int = 1;
/// `RBD_FEATURE_EXCLUSIVE_LOCK`.
pub(crate) const FEATURE_EXCLUSIVE_LOCK: u64 = 1 << 2;
/// `RBD_FEATURE_STRIPINGV2`.
pub(crate) const FEATURE_STRIPING: u64 = 1 << 1;
/// `RBD_FEATURE_FAST_DIFF`.
pub(crate) const FEATURE_FAST_DIFF: u64 = 1 << 4;
/// `RBD_FLAG_FAST_DIFF_INVALID`.
pub(crate) const FLAG_FAST_DIFF_INVALID: u64 = 1 << 1;

/// `rbd_image_info_t`.
#[repr(C)]
pub(crate) struct ImageInfo {
    pub(crate) size: u64,
    pub(crate) obj_size: u64,
    pub(crate) num_objs: u64,
    pub(crate) order: c_int,
    pub(crate) block_name_prefix: [c_char; 24],
    pub(crate) parent_pool: i64,
    pub(crate) parent_name: [c_char; 96],
}

/// `rbd_image_watcher_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Watcher {
    pub(crate) addr: *mut c_char,
    pub(crate) id: i64,
    pub(crate) cookie: u64,
}

/// `rbd_config_option_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ConfigOption {
    pub(crate) name: *mut c_char,
    pub(crate) value: *mut c_char,
    pub(crate) source: c_int,
}

macro_rules! functions {
    ($($library:ident { $(fn $function:ident($($type:ty),*) $(-> $result:ty)?;)* })*) => {
        /// Addresses of the functions.
        #[derive(Clone, Copy)]
        pub(crate) struct Functions {
            $($(pub(crate) $function: unsafe extern "C" fn($($type),*) $(-> $result)?,)*)*
        }

        impl Functions {
            /// Finds the functions; `find` gives the address of one in a library.
            ///
            /// # Safety
            /// Each address is that of a function with the prototype given here.
            pub(crate) unsafe fn found<E>(
                mut find: impl FnMut(&'static str, &'static std::ffi::CStr) -> Result<*mut c_void, E>,
            ) -> Result<Self, E> {
                Ok(Self {
                    $($($function: {
                        let name = concat!(stringify!($function), "\0");
                        let name = std::ffi::CStr::from_bytes_with_nul(name.as_bytes()).expect("one zero, at the end");
                        let address = find(stringify!($library), name)?;
                        // SAFETY: the caller's contract; an address of a function has the size of a pointer.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($type),*) $(-> $result)?>(address)
                        }
                    },)*)*
                })
            }
        }

        /// Names, types of the arguments and of the result of all functions.
        #[cfg(test)]
        pub(crate) const PROTOTYPES: &[(&str, &[&str], &str)] = &[
            $($((stringify!($function), &[$(stringify!($type)),*], stringify!($($result)?)),)*)*
        ];
    };
}

functions! {
    librados {
    fn rados_create2(*mut Rados, *const c_char, *const c_char, u64) -> c_int;
    fn rados_conf_read_file(Rados, *const c_char) -> c_int;
    fn rados_conf_parse_env(Rados, *const c_char) -> c_int;
    fn rados_conf_set(Rados, *const c_char, *const c_char) -> c_int;
    fn rados_connect(Rados) -> c_int;
    fn rados_shutdown(Rados);
    fn rados_cluster_fsid(Rados, *mut c_char, usize) -> c_int;
    fn rados_get_instance_id(Rados) -> u64;
    fn rados_ioctx_create(Rados, *const c_char, *mut IoContext) -> c_int;
    fn rados_ioctx_destroy(IoContext);
    fn rados_ioctx_set_namespace(IoContext, *const c_char);
    fn rados_ioctx_get_id(IoContext) -> i64;
    fn rados_set_pool_full_try(IoContext);
    fn rados_getaddrs(Rados, *mut *mut c_char) -> c_int;
    fn rados_buffer_free(*mut c_char);
    fn rados_blocklist_add(Rados, *mut c_char, u32) -> c_int;
    fn rados_wait_for_latest_osdmap(Rados) -> c_int;
    fn rados_read(IoContext, *const c_char, *mut c_char, usize, u64) -> c_int;
    fn rados_remove(IoContext, *const c_char) -> c_int;
    fn rados_create_write_op() -> WriteOperation;
    fn rados_release_write_op(WriteOperation);
    fn rados_write_op_create(WriteOperation, c_int, *const c_char);
    fn rados_write_op_cmpext(WriteOperation, *const c_char, usize, u64, *mut c_int);
    fn rados_write_op_write_full(WriteOperation, *const c_char, usize);
    fn rados_write_op_operate(WriteOperation, IoContext, *const c_char, *mut Time, c_int) -> c_int;
    fn rados_nobjects_list_open(IoContext, *mut ListContext) -> c_int;
    fn rados_nobjects_list_next(ListContext, *mut *const c_char, *mut *const c_char, *mut *const c_char) -> c_int;
    fn rados_nobjects_list_close(ListContext);
    fn rados_aio_create_completion2(*mut c_void, ObjectCallback, *mut ObjectCompletion) -> c_int;
    fn rados_aio_get_return_value(ObjectCompletion) -> c_int;
    fn rados_aio_release(ObjectCompletion);
    fn rados_aio_read(IoContext, *const c_char, ObjectCompletion, *mut c_char, usize, u64) -> c_int;
    fn rados_aio_write_full(IoContext, *const c_char, ObjectCompletion, *const c_char, usize) -> c_int;
    fn rados_aio_remove(IoContext, *const c_char, ObjectCompletion) -> c_int;
    }
    librbd {
    fn rbd_version(*mut c_int, *mut c_int, *mut c_int);
    fn rbd_image_options_create(*mut ImageOptions);
    fn rbd_image_options_destroy(ImageOptions);
    fn rbd_create4(IoContext, *const c_char, u64, ImageOptions) -> c_int;
    fn rbd_open(IoContext, *const c_char, *mut RawImage, *const c_char) -> c_int;
    fn rbd_open_read_only(IoContext, *const c_char, *mut RawImage, *const c_char) -> c_int;
    fn rbd_close(RawImage) -> c_int;
    fn rbd_stat(RawImage, *mut ImageInfo, usize) -> c_int;
    fn rbd_get_id(RawImage, *mut c_char, usize) -> c_int;
    fn rbd_get_features(RawImage, *mut u64) -> c_int;
    fn rbd_get_flags(RawImage, *mut u64) -> c_int;
    fn rbd_get_overlap(RawImage, *mut u64) -> c_int;
    fn rbd_diff_iterate2(RawImage, *const c_char, u64, u64, u8, u8, OnExtent, *mut c_void) -> c_int;
    fn rbd_resize2(RawImage, u64, bool, Progress, *mut c_void) -> c_int;
    fn rbd_config_image_list(RawImage, *mut ConfigOption, *mut c_int) -> c_int;
    fn rbd_config_image_list_cleanup(*mut ConfigOption, c_int);
    fn rbd_metadata_set(RawImage, *const c_char, *const c_char) -> c_int;
    fn rbd_metadata_remove(RawImage, *const c_char) -> c_int;
    fn rbd_metadata_list(RawImage, *const c_char, u64, *mut c_char, *mut usize, *mut c_char, *mut usize) -> c_int;
    fn rbd_lock_acquire(RawImage, c_int) -> c_int;
    fn rbd_lock_release(RawImage) -> c_int;
    fn rbd_lock_break(RawImage, c_int, *const c_char) -> c_int;
    fn rbd_lock_get_owners(RawImage, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
    fn rbd_lock_get_owners_cleanup(*mut *mut c_char, usize);
    fn rbd_is_exclusive_lock_owner(RawImage, *mut c_int) -> c_int;
    fn rbd_watchers_list(RawImage, *mut Watcher, *mut usize) -> c_int;
    fn rbd_watchers_list_cleanup(*mut Watcher, usize);
    fn rbd_set_image_notification(RawImage, c_int, c_int) -> c_int;
    fn rbd_poll_io_events(RawImage, *mut RawCompletion, c_int) -> c_int;
    fn rbd_aio_create_completion(*mut c_void, Callback, *mut RawCompletion) -> c_int;
    fn rbd_aio_get_return_value(RawCompletion) -> isize;
    fn rbd_aio_get_arg(RawCompletion) -> *mut c_void;
    fn rbd_aio_release(RawCompletion);
    fn rbd_aio_read(RawImage, u64, usize, *mut c_char, RawCompletion) -> c_int;
    fn rbd_aio_write(RawImage, u64, usize, *const c_char, RawCompletion) -> c_int;
    fn rbd_aio_flush(RawImage, RawCompletion) -> c_int;
    fn rbd_aio_write_zeroes(RawImage, u64, usize, RawCompletion, c_int, c_int) -> c_int;
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::mem::{offset_of, size_of};
    use std::process::Command;

    use super::*;

    /// The C type of a type that the prototypes use.
    fn c_type(rust: &str) -> String {
        let name = match rust {
            "" => "void",
            "bool" => "bool",
            "u8" => "uint8_t",
            "u32" => "uint32_t",
            "u64" => "uint64_t",
            "i64" => "int64_t",
            "usize" => "size_t",
            "isize" => "ssize_t",
            "c_int" => "int",
            "c_char" => "char",
            "c_void" => "void",
            "Rados" => "rados_t",
            "IoContext" => "rados_ioctx_t",
            "RawImage" => "rbd_image_t",
            "ImageOptions" => "rbd_image_options_t",
            "RawCompletion" => "rbd_completion_t",
            "Callback" => "rbd_callback_t",
            "ObjectCompletion" => "rados_completion_t",
            "ObjectCallback" => "rados_callback_t",
            "WriteOperation" => "rados_write_op_t",
            "ListContext" => "rados_list_ctx_t",
            "Time" => "time_t",
            "Progress" => "librbd_progress_fn_t",
            "OnExtent" => "int (*)(uint64_t, size_t, int, void *)",
            "ImageInfo" => "rbd_image_info_t",
            "Watcher" => "rbd_image_watcher_t",
            "ConfigOption" => "rbd_config_option_t",
            pointer => {
                if let Some(target) = pointer.strip_prefix("*mut ") {
                    return format!("{} *", c_type(target));
                }
                let target =
                    pointer.strip_prefix("*const ").unwrap_or_else(|| panic!("no C type for {rust}"));
                return format!("const {} *", c_type(target));
            }
        };
        name.to_owned()
    }

    /// Enumerations of C in place of `int`.
    fn with_enumerations(function: &str, types: &mut [String]) {
        match function {
            "rbd_lock_acquire" | "rbd_lock_break" => types[1] = "rbd_lock_mode_t".into(),
            "rbd_lock_get_owners" => types[1] = "rbd_lock_mode_t *".into(),
            _ => {}
        }
    }

    /// What the installed headers must agree with.
    fn assertions() -> String {
        let mut text = String::from(
            "#include <stddef.h>\n#include <stdint.h>\n#include <stdbool.h>\n#include <sys/types.h>\n\
             #include <rbd/librbd.h>\n",
        );
        for (function, arguments, result) in PROTOTYPES {
            let mut types: Vec<String> = arguments.iter().map(|argument| c_type(argument)).collect();
            with_enumerations(function, &mut types);
            let _ = writeln!(
                text,
                "_Static_assert(__builtin_types_compatible_p(__typeof__({function}), {} ({})), \"{function}\");",
                c_type(result),
                types.join(", ")
            );
        }
        let mut equal = |c: &str, rust: usize| {
            let _ =
                writeln!(text, "_Static_assert(({c}) == {rust}, \"{rust} here, {}\");", c.replace('"', ""));
        };
        equal("sizeof(rbd_image_info_t)", size_of::<ImageInfo>());
        equal("offsetof(rbd_image_info_t, obj_size)", offset_of!(ImageInfo, obj_size));
        equal("offsetof(rbd_image_info_t, num_objs)", offset_of!(ImageInfo, num_objs));
        equal("offsetof(rbd_image_info_t, order)", offset_of!(ImageInfo, order));
        equal("offsetof(rbd_image_info_t, block_name_prefix)", offset_of!(ImageInfo, block_name_prefix));
        equal("offsetof(rbd_image_info_t, parent_pool)", offset_of!(ImageInfo, parent_pool));
        equal("offsetof(rbd_image_info_t, parent_name)", offset_of!(ImageInfo, parent_name));
        equal("sizeof(rbd_image_watcher_t)", size_of::<Watcher>());
        equal("offsetof(rbd_image_watcher_t, id)", offset_of!(Watcher, id));
        equal("offsetof(rbd_image_watcher_t, cookie)", offset_of!(Watcher, cookie));
        equal("sizeof(rbd_config_option_t)", size_of::<ConfigOption>());
        equal("offsetof(rbd_config_option_t, value)", offset_of!(ConfigOption, value));
        equal("offsetof(rbd_config_option_t, source)", offset_of!(ConfigOption, source));
        equal("sizeof(rbd_lock_mode_t)", size_of::<c_int>());
        equal("EVENT_TYPE_EVENTFD", EVENT_TYPE_EVENTFD as usize);
        equal("RBD_LOCK_MODE_EXCLUSIVE", LOCK_EXCLUSIVE as usize);
        equal("RBD_WRITE_ZEROES_FLAG_THICK_PROVISION", ZEROES_KEEP_SPACE as usize);
        equal("LIBRADOS_CREATE_EXCLUSIVE", CREATE_EXCLUSIVE as usize);
        equal("RBD_FEATURE_EXCLUSIVE_LOCK", FEATURE_EXCLUSIVE_LOCK as usize);
        equal("RBD_FEATURE_STRIPINGV2", FEATURE_STRIPING as usize);
        equal("RBD_FEATURE_FAST_DIFF", FEATURE_FAST_DIFF as usize);
        equal("RBD_FLAG_FAST_DIFF_INVALID", FLAG_FAST_DIFF_INVALID as usize);
        text
    }

    #[test]
    fn prototypes_and_layouts_are_those_of_the_installed_headers() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("assertions.c");
        let compile = |text: &str| {
            std::fs::write(&source, text).unwrap();
            let mut compiler = Command::new("cc");
            compiler.args(["-fsyntax-only", "-Wno-deprecated-declarations"]).arg(&source).output()
        };
        let output = compile("#include <rbd/librbd.h>\n").expect("a C compiler: sudo apt-get install gcc");
        assert!(output.status.success(), "no headers of librbd: sudo apt-get install librbd-dev");
        let output = compile(&assertions()).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        // The compiler really compares.
        let wrong = assertions().replace("RBD_LOCK_MODE_EXCLUSIVE) == 0", "RBD_LOCK_MODE_EXCLUSIVE) == 1");
        assert!(!compile(&wrong).unwrap().status.success());
    }
}
