// One entry of the browser's history per page: Streamlit adds one for every change of the address, so that going back
// from the tenth step took ten presses. Within a page the address is replaced.

if (!window.prepHistory) {
  window.prepHistory = true;
  const push = history.pushState.bind(history);
  history.pushState = (state, title, url) => {
    const stays = url === undefined || url === null || new URL(url, location.href).pathname === location.pathname;
    return stays ? history.replaceState(state, title, url) : push(state, title, url);
  };
}
