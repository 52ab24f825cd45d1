//! A program that calls `exit` would end a whole run, with success and without a message. A handler of the process says so instead.
#![allow(unsafe_code)]

use std::cell::Cell;
use std::ffi::c_int;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Once;

/// The status with which the process ends then.
const FAILED: c_int = 1;

thread_local! {
    /// The name of the program that this thread calls. It has no destructor, so that the handler can read it.
    static CALLED: Cell<Option<NonNull<str>>> = const { Cell::new(None) };
}

unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
    fn _exit(status: c_int) -> !;
}

/// A call of a program by this thread, until it is dropped.
#[derive(Debug)]
pub struct Calling<'a>(PhantomData<&'a str>);

impl Calling<'_> {
    /// This thread calls the program of this name.
    #[inline]
    pub fn begin(name: &str) -> Calling<'_> {
        static HANDLED: Once = Once::new();
        HANDLED.call_once(|| {
            // SAFETY: the handler lives as long as this process. Without memory for it the process ends as the program wants.
            let _ = unsafe { atexit(on_exit) };
        });
        CALLED.set(Some(NonNull::from(name)));
        Calling(PhantomData)
    }
}

impl Drop for Calling<'_> {
    fn drop(&mut self) {
        CALLED.set(None);
    }
}

/// Runs on the thread that has called `exit`.
extern "C" fn on_exit() {
    let Some(name) = CALLED.get() else { return };
    // SAFETY: the name outlives the call, and the call has not returned.
    let text = format!("error: {} has called exit; a program returns from its calls\n", unsafe { name.as_ref() });
    // The process ends anyway.
    let _ = rustix::io::write(rustix::stdio::stderr(), text.as_bytes());
    // SAFETY: it ends the process at once.
    unsafe { _exit(FAILED) }
}
