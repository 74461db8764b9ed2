//! A thread that may not wait in the kernel, for tests: no sleeping, and no waiting for descriptors.

/// From now on a system call of this thread that sleeps or polls fails with EPERM, at which `sleep` of the
/// standard library panics. Programs that the thread starts inherit this.
pub fn forbid_waiting() {
    let load = |offset: u32| libc::sock_filter { code: 0x20, jt: 0, jf: 0, k: offset };
    let answer = |verdict: u32| libc::sock_filter { code: 0x06, jt: 0, jf: 0, k: verdict };
    let waiting = [libc::SYS_clock_nanosleep, libc::SYS_nanosleep, libc::SYS_ppoll, libc::SYS_poll];
    // The first field of what the filter sees is the number of the call.
    let mut filter = vec![load(0)];
    for (at, call) in waiting.iter().enumerate() {
        let to_refusal = (waiting.len() - at) as u8;
        filter.push(libc::sock_filter { code: 0x15, jt: to_refusal, jf: 0, k: *call as u32 });
    }
    filter.push(answer(libc::SECCOMP_RET_ALLOW));
    filter.push(answer(libc::SECCOMP_RET_ERRNO | libc::EPERM as u32));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: both calls affect this thread alone; the kernel copies the filter, which is live.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let set = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
}
