/* How the search weighs what it finds, by Sphinx's own scale; why something was decided comes after how it is used.
   Sphinx's own scripts declare the same name by `var`, which can be said twice. */
var BEHIND = ["docs/decisions/", "CHANGELOG", "skills/"];
var Scorer = {
  score: ([page, , , , points]) => (BEHIND.some((beginning) => page.startsWith(beginning)) ? points / 4 : points),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: {},
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
