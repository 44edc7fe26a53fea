// Last of the joined files: what moves is watched from the moment that there is a page, so that whoever wants to click soon
// afterwards need not wait to see whether it does. When all of it is there, address and title are told without being asked
// for: a page that has just loaded is busy drawing itself, and would answer only then.
(bj => {
  if (bj.started) return;
  bj.started = true;
  if (document.readyState === 'loading') document.addEventListener('DOMContentLoaded', () => bj.watch(), { once: true });
  else bj.watch();
  // A page of usual size is laid out by then, and if it is small the walker has run in it once and is not cold any more, so
  // that whoever reads it next need not wait for that.
  const warmUp = () => {
    const size = bj.dom.all(document, '*').length;
    if (size < 5000) bj.dom.box(bj.dom.html(document));
    if (size < 1500) bj.walk({});
  };
  const tell = () => {
    if (window === top || innerWidth > 2 && innerHeight > 2) warmUp();
    if (window === top) globalThis.belljarTold?.(bj.whereabouts());
  };
  // Listens last of all, so that what the page does when it is loaded has been done.
  const listen = () => {
    if (document.readyState === 'complete') addEventListener('load', tell, { once: true });
  };
  document.addEventListener('readystatechange', listen);
})(globalThis.__bj);
