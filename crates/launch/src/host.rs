//! Which host this is (J-11).

use std::io;

use tautline_node::HostId;

/// The number of this host: the same for processes that run under one kernel, since one boot, in one network
/// namespace. Containers and network namespaces count as hosts, whatever files they share.
pub fn host_id() -> io::Result<HostId> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let network = std::fs::read_link("/proc/self/ns/net")?;
    let facts = format!("tautline host {} {}", boot.trim(), network.display());
    let digest = ring::digest::digest(&ring::digest::SHA256, facts.as_bytes());
    let first = digest.as_ref()[..8].try_into().expect("a digest has 32 bytes");
    Ok(HostId(u64::from_be_bytes(first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// J-11: another network namespace is another host.
    #[test]
    fn a_network_namespace_is_a_host() {
        const CHILD: &str = "TAUTLINE_TEST_PRINT_HOST";
        let id = host_id().unwrap();
        if std::env::var_os(CHILD).is_some() {
            std::fs::write(std::env::var_os(CHILD).unwrap(), format!("{id:?}")).unwrap();
            return;
        }
        assert_eq!(id, host_id().unwrap());
        if let Some(why) = tautline_skips::lacks_namespaces() {
            return tautline_skips::skip("a_network_namespace_is_a_host", why);
        }
        let file = std::env::temp_dir().join(format!("tautline-host-{}", std::process::id()));
        let mut other = std::process::Command::new("unshare");
        other.arg("--net").arg(std::env::current_exe().unwrap());
        other.args(["a_network_namespace_is_a_host", "--test-threads=1"]).env(CHILD, &file);
        assert!(other.output().unwrap().status.success());
        let said = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert!(said.starts_with("HostId(") && said != format!("{id:?}"), "{said}");
    }
}
