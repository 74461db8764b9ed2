//! The two processes in network namespaces of their own, with a veth pair for each system.
//!
//! The namespaces have no names: they live exactly as long as the processes in them, and the veth pairs as
//! long as the namespaces, so that nothing is left behind, even after `kill -9`.

use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// One pair each for TCP, raw UDP, ours, bare AF_XDP in two modes, rivals, ours over AF_XDP in two framings,
/// and TCP without offloads.
const LANES: u8 = 9;
/// Lanes of AF_XDP, whose frames must fit a page: they keep the usual MTU.
const XDP_LANES: [u8; 4] = [3, 4, 6, 7];

/// The name of a veth pair's interface, on both sides.
pub fn interface(lane: u8) -> String {
    format!("taut{lane}")
}

/// The addresses of sides A and B on a veth pair.
pub fn addresses(lane: u8) -> (IpAddr, IpAddr) {
    (IpAddr::V4(Ipv4Addr::new(10, 201, lane, 1)), IpAddr::V4(Ipv4Addr::new(10, 201, lane, 2)))
}

/// Checks whether namespaces can be made here; the error says why not, and what to do.
pub fn check() -> Result<()> {
    for tool in ["ip", "unshare", "nsenter"] {
        if !std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .any(|f| f.join(tool).is_file())
        {
            let package = if tool == "ip" { "iproute2" } else { "util-linux" };
            bail!(
                "network namespaces need the command {tool}, which is not in PATH\ninstall the package {package}"
            );
        }
    }
    let made = Command::new("unshare").args(["--net", "true"]).stderr(Stdio::null()).status();
    if !made.is_ok_and(|status| status.success()) {
        bail!(
            "this user may not make network namespaces\nrun it as root, or in a user namespace: unshare --user --map-root-user --net tautline bench --netns"
        );
    }
    Ok(())
}

/// This program in a network namespace of its own; the process keeps its number.
pub fn this_program_in_namespace() -> Result<Command> {
    let this_program = std::env::current_exe().context("cannot find our own file")?;
    let mut command = Command::new("unshare");
    command.arg0("unshare").arg("--net").arg("--").arg(this_program);
    Ok(command)
}

/// Connects the namespaces of two processes that have just been started.
pub fn connect(a: u32, b: u32, mtu: u16) -> Result<()> {
    let [in_a, in_b] = [a, b].map(|pid| format!("/proc/{pid}/ns/net"));
    ip(&in_a, &["link", "set", "lo", "up"])?;
    ip(&in_b, &["link", "set", "lo", "up"])?;
    for lane in 0..LANES {
        let name = interface(lane);
        let peer = b.to_string();
        ip(&in_a, &["link", "add", &name, "type", "veth", "peer", "name", &name, "netns", &peer])?;
        let (address_a, address_b) = addresses(lane);
        for (namespace, address) in [(&in_a, address_a), (&in_b, address_b)] {
            ip(namespace, &["address", "add", &format!("{address}/24"), "dev", &name])?;
            if !XDP_LANES.contains(&lane) {
                ip(namespace, &["link", "set", &name, "mtu", &mtu.to_string()])?;
            }
            ip(namespace, &["link", "set", &name, "up"])?;
        }
    }
    Ok(())
}

fn ip(namespace: &str, args: &[&str]) -> Result<()> {
    let done = Command::new("nsenter").arg(format!("--net={namespace}")).arg("ip").args(args).output()?;
    if !done.status.success() {
        bail!("cannot set up veth: ip {}: {}", args.join(" "), String::from_utf8_lossy(&done.stderr).trim());
    }
    Ok(())
}
