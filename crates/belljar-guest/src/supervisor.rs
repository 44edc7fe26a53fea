//! The socket to the process that made this sandbox: it brings connections, and interpreters from the zygote.

use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::OwnedFd,
    rc::Rc,
};

use belljar_proto::{
    Language,
    supervisor::{FromGuest, GuestConfig, MAX_PACKET, ToGuest},
};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendFlags, recvmsg, sendmsg,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::oneshot,
    task::spawn_local,
};

use crate::{
    background::Background,
    browser::{Browser, Launch},
    capture::OUTPUTS,
    connection,
    environment::Environment,
    kernel::Kernels,
    processes::Processes,
    wires,
};

/// How an interpreter from the zygote ended.
#[derive(Debug)]
pub(crate) enum KernelEnd {
    Failed(String),
    Exited { status: i32, out_of_memory: bool },
}

/// Socket, standard output and standard error of an interpreter: our ends.
pub(crate) type Wires = [OwnedFd; 3];

/// An interpreter that was asked for.
pub(crate) struct Expected {
    pub(crate) wires: oneshot::Receiver<Wires>,
    pub(crate) end: oneshot::Receiver<KernelEnd>,
}

/// Asks the maker of this sandbox for interpreters.
pub(crate) struct Supervisor {
    socket: AsyncFd<OwnedFd>,
    next: Cell<u64>,
    waiting: RefCell<HashMap<u64, oneshot::Sender<Wires>>>,
    living: RefCell<HashMap<u64, oneshot::Sender<KernelEnd>>>,
    browsers: RefCell<HashMap<u64, oneshot::Sender<Result<OwnedFd, String>>>>,
    /// The interpreter that comes without being asked for.
    first: RefCell<Option<Expected>>,
}

/// What all parts of the guest share.
pub(crate) struct Guest {
    pub(crate) config: GuestConfig,
    pub(crate) kernels: Kernels,
    pub(crate) processes: Rc<Processes>,
    pub(crate) background: Background,
    pub(crate) browser: Browser,
    pub(crate) environment: Rc<Environment>,
}

impl Guest {
    pub(crate) fn new(config: GuestConfig, supervisor: Option<&Rc<Supervisor>>) -> io::Result<Rc<Self>> {
        let processes = Rc::new(Processes::default());
        spawn_local(Rc::clone(&processes).reap_forever()?);
        let environment = Rc::new(Environment::starting_in(config.workdir.clone()));
        let shared = (Rc::clone(&processes), Rc::clone(&environment));
        let kernels = Kernels::new(config.clone(), supervisor.cloned(), shared);
        let background = Background::new(Rc::clone(&processes), Rc::clone(&environment), OUTPUTS.into());
        let browser = Browser::new(launcher(supervisor.filter(|_| config.browser)));
        Ok(Rc::new(Self { config, kernels, processes, background, browser, environment }))
    }
}

pub(crate) async fn serve(control: OwnedFd) -> io::Result<()> {
    rustix::io::ioctl_fionbio(&control, true)?;
    // It came through exec; nothing that is started from here may have it.
    rustix::io::fcntl_setfd(&control, rustix::io::FdFlags::CLOEXEC)?;
    // SAFETY: the descriptor is owned and stays open for as long as it is registered.
    let socket = unsafe { AsyncFd::register(control) }?;
    let supervisor = Rc::new(Supervisor {
        socket,
        next: Cell::new(0),
        waiting: RefCell::default(),
        living: RefCell::default(),
        browsers: RefCell::default(),
        first: RefCell::default(),
    });
    let Some((ToGuest::Init { config }, _)) = supervisor.receive().await? else {
        return Err(io::Error::other("the first packet must be init"));
    };
    if config.first == Some(Language::Python) && config.python.is_empty() {
        let (_, first) = supervisor.expect();
        supervisor.first.replace(Some(first));
    }
    let guest = Guest::new(config, Some(&supervisor))?;
    while let Some((packet, mut fds)) = supervisor.receive().await? {
        match packet {
            ToGuest::Init { .. }
            | ToGuest::Claimed { .. }
            | ToGuest::Dial { .. }
            | ToGuest::Listen { .. } => {
                return Err(io::Error::other("a packet for another kind of guest"));
            }
            ToGuest::Connection => {
                if let Some(stream) = fds.pop() {
                    spawn_local(connection::serve(Rc::clone(&guest), stream));
                }
            }
            ToGuest::Kernel { id } => {
                let waiting = supervisor.waiting.borrow_mut().remove(&id);
                if let (Some(waiting), Ok(wires)) = (waiting, Wires::try_from(fds)) {
                    // Nobody waits any more when it took too long.
                    let _ = waiting.send(wires);
                }
            }
            ToGuest::Limits { memory_bytes, processes } => guest.kernels.set_limits(memory_bytes, processes),
            ToGuest::KernelFailed { id, message } => supervisor.ended(id, KernelEnd::Failed(message)),
            ToGuest::KernelExited { id, status, out_of_memory } => {
                supervisor.ended(id, KernelEnd::Exited { status, out_of_memory });
            }
            ToGuest::Browser { id } => {
                let stream = fds.pop().ok_or_else(|| "a browser without a stream".to_owned());
                supervisor.browser_came(id, stream);
            }
            ToGuest::BrowserFailed { id, message } => supervisor.browser_came(id, Err(message)),
        }
    }
    Ok(())
}

fn launcher(supervisor: Option<&Rc<Supervisor>>) -> Launch {
    let supervisor = supervisor.cloned();
    Box::new(move || {
        let supervisor = supervisor.clone();
        Box::pin(async move {
            let Some(supervisor) = supervisor else {
                return Err(
                    "there is no browser here: install Debian's chromium-headless-shell or chromium on the \
                            machine, then restart; `belljar doctor` tells more"
                        .into(),
                );
            };
            let stream = supervisor.request_browser().await?;
            wires::stream(stream).map_err(|e| format!("no stream to the browser: {e}"))
        })
    })
}

impl Supervisor {
    fn expect(&self) -> (u64, Expected) {
        let id = self.next.replace(self.next.get() + 1);
        let (waiting, wires) = oneshot::channel();
        let (living, end) = oneshot::channel();
        self.waiting.borrow_mut().insert(id, waiting);
        self.living.borrow_mut().insert(id, living);
        (id, Expected { wires, end })
    }

    /// An interpreter from the zygote: the one that is on its way, or one that is asked for now.
    pub(crate) async fn request_kernel(&self) -> io::Result<Expected> {
        if let Some(first) = self.first.take() {
            return Ok(first);
        }
        let (id, expected) = self.expect();
        self.send(&FromGuest::Kernel { id }).await?;
        Ok(expected)
    }

    /// A stream to a browser that was just started in this sandbox.
    pub(crate) async fn request_browser(&self) -> Result<OwnedFd, String> {
        let id = self.next.replace(self.next.get() + 1);
        let (sender, came) = oneshot::channel();
        self.browsers.borrow_mut().insert(id, sender);
        self.send(&FromGuest::Browser { id })
            .await
            .map_err(|e| format!("the sandbox's maker is gone: {e}"))?;
        came.await.unwrap_or_else(|_| Err("the sandbox's maker is gone".into()))
    }

    fn browser_came(&self, id: u64, how: Result<OwnedFd, String>) {
        if let Some(waiting) = self.browsers.borrow_mut().remove(&id) {
            // Nobody waits any more when it took too long; then its stream closes, and it ends.
            let _ = waiting.send(how);
        }
    }

    async fn send(&self, packet: &FromGuest) -> io::Result<()> {
        let packet = serde_json::to_vec(packet)?;
        let send = |socket: &OwnedFd| {
            let mut nothing = SendAncillaryBuffer::default();
            Ok(sendmsg(socket, &[IoSlice::new(&packet)], &mut nothing, SendFlags::NOSIGNAL)?)
        };
        self.socket.async_io(Interest::WRITABLE, send).await?;
        Ok(())
    }

    fn ended(&self, id: u64, how: KernelEnd) {
        if let Some(waiting) = self.living.borrow_mut().remove(&id) {
            // Nobody listens any more when the kernel was replaced meanwhile.
            let _ = waiting.send(how);
        }
    }

    async fn receive(&self) -> io::Result<Option<(ToGuest, Vec<OwnedFd>)>> {
        let receive = |socket: &OwnedFd| {
            let mut buffer = vec![0; MAX_PACKET];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))];
            let mut ancillary = RecvAncillaryBuffer::new(&mut space);
            let flags = RecvFlags::CMSG_CLOEXEC;
            let bytes = recvmsg(socket, &mut [IoSliceMut::new(&mut buffer)], &mut ancillary, flags)?.bytes;
            let mut fds = Vec::new();
            for message in ancillary.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    fds.extend(rights);
                }
            }
            if bytes == 0 {
                return Ok(None);
            }
            Ok(Some((serde_json::from_slice(&buffer[..bytes])?, fds)))
        };
        self.socket.async_io(Interest::READABLE, receive).await
    }
}
