//! Sockets that listen inside a sandbox and are served from outside: the only way out there is.

use std::{
    net::{Ipv4Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
};

use rustix::{
    fs::{Mode, OFlags, open},
    net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt},
};

use crate::{Doing, JailError, Result, protocol::PROXY_PORTS, sandbox::Sandbox, sys};

const BACKLOG: i32 = 128;

impl Sandbox {
    /// Binds them in the sandbox's network namespace. No process inside has them.
    pub(crate) fn listen(&self) -> Result<[OwnedFd; 2]> {
        let own = open("/proc/self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .doing(|| "open the network namespace".into())?;
        sys::setns(self.pidfd.as_fd(), libc::CLONE_NEWNET).doing(|| "enter the network namespace".into())?;
        let made = PROXY_PORTS.map(listener);
        if sys::setns(own.as_fd(), libc::CLONE_NEWNET).is_err() {
            // The next sandbox would share a namespace with this one.
            sys::exit_now(71);
        }
        let [http, socks] = made;
        Ok([http?, socks?])
    }
}

fn listener(port: u16) -> Result<OwnedFd> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let made = || -> rustix::io::Result<OwnedFd> {
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        // Connections of an earlier one may still be fading away.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &address)?;
        listen(&socket, BACKLOG)?;
        Ok(socket)
    };
    made().map_err(|e| {
        JailError::new(format!("listen at {address} in the sandbox"), e)
            .hint("a program in the sandbox may be using the port: end it")
    })
}
