// One entry of the browser's history per page: Streamlit adds one for every change of the address, so that going back
// from the tenth step took ten presses. Within a page the address is replaced. When Streamlit opens another page with
// parameters, it first gives them to the page that is left, and so Back would lead to a page with them: that is undone.

if (!window.prepHistory) {
  window.prepHistory = true;
  const push = history.pushState.bind(history);
  let before = null; // the address that was replaced last, since the user did something
  for (const kind of ["pointerdown", "keydown", "popstate"]) window.addEventListener(kind, () => (before = null), true);
  history.pushState = (state, title, url) => {
    const stays = url === undefined || url === null || new URL(url, location.href).pathname === location.pathname;
    if (stays) {
      before = location.href;
      return history.replaceState(state, title, url);
    }
    if (before && new URL(url, location.href).search === location.search) history.replaceState(history.state, "", before);
    before = null;
    return push(state, title, url);
  };
}
