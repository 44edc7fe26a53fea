//! What the server and the jailer say to each other: one JSON object per packet, descriptors beside it.

use std::{
    collections::BTreeMap,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect,
    listen, recvmsg, sendmsg, socket_with, socketpair,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};

pub use belljar_proto::{
    Language,
    supervisor::{FromGuest, GuestConfig, MAX_PACKET, ToGuest},
};

use crate::JailError;
pub use crate::copies::Small;

/// The most descriptors one packet may carry.
pub const MAX_FDS: usize = 12;

/// The uid and gid of everything inside a sandbox, as seen from inside.
pub const INSIDE_ID: u32 = 1000;

pub use belljar_proto::supervisor::PROXY_PORTS;

/// What server and jailer say to each other has this shape. A server meets jailers that older ones left.
pub const JAILER_GENERATION: u32 = 2;

/// First packet: what every sandbox of this jailer looks like.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JailerSpec {
    /// Unguessable; names the run directory and the cgroups.
    pub instance: String,
    /// The same for jailers whose sandboxes are alike.
    pub fingerprint: String,
    /// Claimed sandboxes outlive the server by so many seconds; 0: nothing outlives it.
    pub keep_seconds: u64,
    /// Directory that holds one directory per running instance.
    pub run_dir: PathBuf,
    pub root: RootSpec,
    /// Or why there is none.
    pub zygote: std::result::Result<ZygoteSpec, String>,
    /// Or why there is none.
    pub browser: std::result::Result<BrowserSpec, String>,
    /// Environment of everything inside.
    pub env: BTreeMap<String, String>,
    /// Handed to each guest, with the limits of its sandbox filled in.
    pub guest: GuestConfig,
    /// Per-process limits of interpreters from the zygote, which is started before any sandbox is.
    pub interpreter_limits: Limits,
    pub require_cgroups: bool,
    pub require_landlock: bool,
    /// Layers to leave out. Only the escape suite sets this, to prove that each of its probes notices a
    /// missing layer.
    #[serde(default)]
    pub omit: Vec<Layer>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Layer {
    UserNamespace,
    Network,
    Ipc,
    Uts,
    Capabilities,
    NoNewPrivs,
    Seccomp,
    Landlock,
    Cgroups,
    Rlimits,
}

/// The file system tree that sandboxes share, all of it read-only.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RootSpec {
    /// Directories of an image that it lies on, the lowest first. Without any it lies on nothing.
    #[serde(default)]
    pub layers: Vec<PathBuf>,
    pub binds: Vec<Bind>,
    /// Path inside, target.
    pub symlinks: Vec<(String, String)>,
    /// Path inside, text.
    pub files: Vec<(String, String)>,
    /// Empty directories, for what is mounted later.
    pub directories: Vec<String>,
}

/// Volumes for a container that somebody else made.
#[derive(Debug, Serialize, Deserialize)]
pub struct Attachment {
    /// Of any process in it.
    pub pid: i32,
    pub volumes: Vec<Volume>,
}

/// A directory of the host that a sandbox sees.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Volume {
    pub source: PathBuf,
    /// Path inside; one of [`RootSpec::directories`].
    pub target: String,
    pub writable: bool,
    /// Made for sandboxes alone, so its owner may be changed to suit them.
    pub ours: bool,
    /// What its user works on: it may belong to root, as its user may be root, and its path ends in no link.
    #[serde(default)]
    pub project: bool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Bind {
    pub source: PathBuf,
    pub target: String,
    /// Where a copy may stand for it.
    #[serde(default)]
    pub small: Option<Small>,
}

/// An interpreter that has imported everything and forks into sandboxes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ZygoteSpec {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub preload: Vec<String>,
}

/// A browser that guests may ask for. Commands and answers go through descriptors 3 and 4.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BrowserSpec {
    /// The program's path inside and its arguments; `{id}` stands for the number that the guest gave it.
    pub argv: Vec<String>,
    /// All of its environment.
    pub env: BTreeMap<String, String>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    pub cpus: f64,
    pub memory_bytes: u64,
    pub processes: u32,
    pub workspace_bytes: u64,
    pub tmp_bytes: u64,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum ToJailer {
    /// `first` is the interpreter that will be wanted first, started along the way.
    Create {
        id: String,
        limits: Limits,
        first: Option<Language>,
    },
    /// From here on the sandbox is somebody's: it gets their limits and volumes, and survives the server. `label` is
    /// handed to the next one.
    Claim {
        id: String,
        label: String,
        limits: Limits,
        volumes: Vec<Volume>,
    },
    Dial {
        id: String,
    },
    /// Asks for sockets that listen inside, at [`PROXY_PORTS`]. `trust` is the fingerprint of a key that browsers of the
    /// sandbox believe from here on.
    Listen {
        id: String,
        trust: Option<String>,
    },
    Destroy {
        id: String,
    },
    /// Asks what these sandboxes have used.
    Usage {
        ids: Vec<String>,
    },
    /// Ends everything, now.
    End,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "t", rename_all = "snake_case")]
pub enum FromJailer {
    /// The machine has what it takes. `weaker` names what is missing but was not required.
    Ready {
        cgroups: String,
        landlock: u32,
        weaker: Vec<String>,
        /// Whether the processor time of sandboxes can be told.
        counts_cpu: bool,
        /// Whether sandboxes can share a directory of ours.
        shares_volumes: bool,
    },
    /// Nothing can be made here.
    Unusable {
        error: JailError,
    },
    /// First packet to a server that comes later, before [`FromJailer::Ready`].
    Attached {
        generation: u32,
        fingerprint: String,
    },
    /// A claimed sandbox that is still there.
    Survivor {
        id: String,
        label: String,
    },
    /// Another server is using this jailer.
    Busy,
    /// The zygote ended; another one is on its way.
    ZygoteLost {
        message: String,
    },
    ZygoteReady {
        seconds: f64,
        version: String,
    },
    ZygoteFailed {
        message: String,
    },
    /// One descriptor: a stream to the guest.
    Created {
        id: String,
    },
    Claimed {
        id: String,
    },
    Usage {
        usage: Vec<Usage>,
    },
    /// One descriptor: another stream to the guest.
    Dialed {
        id: String,
    },
    /// Two descriptors: listening sockets, in the order of [`PROXY_PORTS`].
    Listening {
        id: String,
    },
    Refused {
        id: String,
        error: JailError,
    },
    /// The sandbox ended, whether asked to or not; nothing of it is left.
    Gone {
        id: String,
        why: String,
        /// Processor time that it used in all.
        cpu_us: u64,
    },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub id: String,
    pub cpu_us: u64,
    pub memory_bytes: u64,
}

/// A packet socket, used from the jailer (blocking sends, non-blocking receives) and the server alike.
#[derive(Debug)]
pub struct Packets(OwnedFd);

impl AsFd for Packets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl From<OwnedFd> for Packets {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Packets> for OwnedFd {
    fn from(packets: Packets) -> Self {
        packets.0
    }
}

fn seqpacket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn address(directory: BorrowedFd<'_>, name: &str) -> io::Result<SocketAddrUnix> {
    Ok(SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))?)
}

/// A packet and what came with it; `None` when the other side is gone.
pub type Received<T> = Option<(T, Vec<OwnedFd>)>;

impl Packets {
    pub fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
        Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
    }

    /// Waits for connections at `name` in a directory. Paths of sockets must be short, so it goes by descriptor.
    pub fn listen(directory: BorrowedFd<'_>, name: &str) -> io::Result<OwnedFd> {
        let socket = seqpacket()?;
        bind(&socket, &address(directory, name)?)?;
        listen(&socket, 8)?;
        Ok(socket)
    }

    pub fn accept(listener: BorrowedFd<'_>) -> io::Result<Self> {
        Ok(Self(accept_with(listener, SocketFlags::CLOEXEC)?))
    }

    pub fn connect(directory: BorrowedFd<'_>, name: &str) -> io::Result<Self> {
        let socket = seqpacket()?;
        connect(&socket, &address(directory, name)?)?;
        Ok(Self(socket))
    }

    pub fn send<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(message, fds, SendFlags::empty())
    }

    /// Sends without waiting: for a peer that is not trusted to read.
    pub fn send_now<T: Serialize>(&self, message: &T, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send_with(message, fds, SendFlags::DONTWAIT)
    }

    fn send_with<T: Serialize>(
        &self,
        message: &T,
        fds: &[BorrowedFd<'_>],
        flags: SendFlags,
    ) -> io::Result<()> {
        let json = serde_json::to_vec(message)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::other("too many descriptors for one packet"));
        }
        sendmsg(&self.0, &[IoSlice::new(&json)], &mut ancillary, flags | SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// Receives without waiting: `WouldBlock` when nothing is there.
    pub fn receive<T: DeserializeOwned>(&self) -> io::Result<Received<T>> {
        self.receive_with(RecvFlags::DONTWAIT)
    }

    pub fn receive_blocking<T: DeserializeOwned>(&self) -> io::Result<Received<T>> {
        self.receive_with(RecvFlags::empty())
    }

    fn receive_with<T: DeserializeOwned>(&self, flags: RecvFlags) -> io::Result<Received<T>> {
        let mut buffer = vec![0u8; MAX_PACKET];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = flags | RecvFlags::CMSG_CLOEXEC;
        let received = recvmsg(&self.0, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, flags)?;
        let mut fds = Vec::new();
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.bytes == 0 {
            return Ok(None);
        }
        let message = serde_json::from_slice(&buffer[..received.bytes])?;
        Ok(Some((message, fds)))
    }
}
