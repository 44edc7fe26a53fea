//! The way in where no jailer made this sandbox: a container engine started the guest, and the host listens at a socket in
//! a directory that both see. The guest calls there, and lives as long as somebody is there, or may come.

use std::{
    io::{self, IoSlice},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    os::fd::{AsFd, OwnedFd},
    path::Path,
    rc::Rc,
    time::Duration,
};

use belljar_proto::{
    frame::Decoder,
    remote::Caller,
    supervisor::{PROXY_PORTS, ToGuest},
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::UnixStream,
    task::spawn_local,
    time::{sleep, timeout},
};

use crate::{connection, supervisor::Guest};

/// How often it is tried whether there is a new host.
const AGAIN: Duration = Duration::from_millis(100);

/// Returns when nobody is there any more: then the sandbox is of no use.
pub(crate) async fn serve(door: Rc<Path>) -> io::Result<()> {
    let mut host = Host::call(&door).await?;
    let (ToGuest::Init { config }, filter) = host.next().await? else {
        return Err(io::Error::other("the first message must be init"));
    };
    restrict(&filter)?;
    let guest = Guest::new(config, None)?;
    let mut keep = Duration::ZERO;
    loop {
        match host.next().await {
            // One that came later says it again; what holds is what was said first.
            Ok((ToGuest::Init { .. }, _)) => {}
            Ok((ToGuest::Claimed { keep_seconds }, _)) => keep = Duration::from_secs(keep_seconds),
            Ok((ToGuest::Limits { memory_bytes, processes }, _)) => {
                guest.kernels.set_limits(memory_bytes, processes);
            }
            Ok((ToGuest::Dial { id }, _)) => {
                let (guest, door) = (Rc::clone(&guest), Rc::clone(&door));
                spawn_local(async move {
                    // Who asked hears nothing then, and gives up by itself.
                    if let Ok(stream) = call(&door, Caller::Stream(id)).await
                        && let Ok(stream) = stream.into_std()
                    {
                        connection::serve(guest, stream.into()).await;
                    }
                });
            }
            Ok((ToGuest::Listen { id }, _)) => {
                let door = Rc::clone(&door);
                spawn_local(async move { listen(&door, id).await });
            }
            Ok(_) => return Err(io::Error::other("a message of another kind of host")),
            Err(_) if keep.is_zero() => return Ok(()),
            Err(_) => host = timeout(keep, Host::wait_for(&door)).await?,
        }
    }
}

struct Host {
    stream: UnixStream,
    decoder: Decoder,
}

impl Host {
    async fn call(door: &Path) -> io::Result<Self> {
        Ok(Self { stream: call(door, Caller::Guest).await?, decoder: Decoder::default() })
    }

    async fn wait_for(door: &Path) -> Self {
        loop {
            match Self::call(door).await {
                Ok(host) => return host,
                Err(_) => sleep(AGAIN).await,
            }
        }
    }

    async fn next(&mut self) -> io::Result<(ToGuest, Vec<u8>)> {
        loop {
            if let Some(frame) = self.decoder.take().map_err(io::Error::other)? {
                return Ok((frame.header, frame.body));
            }
            if self.stream.read_buf(self.decoder.space()).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

async fn call(door: &Path, caller: Caller) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(door).await?;
    stream.write_all(&caller.encode()).await?;
    Ok(stream)
}

/// Binds the sockets of a proxy and hands them out. No process here keeps them.
async fn listen(door: &Path, id: u64) {
    let bind = || -> io::Result<[OwnedFd; 2]> {
        let listener = |port| {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            TcpListener::bind(address).map(OwnedFd::from)
        };
        let [http, socks] = PROXY_PORTS;
        Ok([listener(http)?, listener(socks)?])
    };
    // Without them the host waits in vain, and says so.
    let Ok(sockets) = bind() else { return };
    let Ok(stream) = call(door, Caller::Sockets(id)).await else { return };
    let send = || {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let sockets = sockets.each_ref().map(AsFd::as_fd);
        ancillary.push(SendAncillaryMessage::ScmRights(&sockets));
        Ok(sendmsg(&stream, &[IoSlice::new(&[0])], &mut ancillary, SendFlags::NOSIGNAL)?)
    };
    let _ = stream.async_io(Interest::WRITABLE, send).await;
}

/// Takes on the filter that a jailer would have installed. The engine has one of its own, which cannot say all of it.
fn restrict(filter: &[u8]) -> io::Result<()> {
    const STEP: usize = 8;
    if filter.is_empty() || !filter.len().is_multiple_of(STEP) || filter.len() / STEP > 4096 {
        return Err(io::Error::other("the filter is missing or malformed"));
    }
    let step = |bytes: &[u8]| libc::sock_filter {
        code: u16::from_ne_bytes([bytes[0], bytes[1]]),
        jt: bytes[2],
        jf: bytes[3],
        k: u32::from_ne_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    let mut code: Vec<libc::sock_filter> = filter.chunks_exact(STEP).map(step).collect();
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    // SAFETY: the program is valid for the call, which copies it.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if installed { Ok(()) } else { Err(io::Error::last_os_error()) }
}
