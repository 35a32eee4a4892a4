/*
** A shelf of books: a small program that was written for the model that has
** read C, to be looked at letter by letter.  It keeps books in the order of
** their titles, lends them, and takes them back.
**
** A book has a title, an author and the name of whoever has borrowed it.  A
** book that nobody has borrowed has an empty name.  Books are kept in a
** linked list, since a shelf is never long.
*/
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SHELF_OK      0   /* All is well */
#define SHELF_NOMEM   1   /* There is no memory left */
#define SHELF_MISSING 2   /* No book has this title */
#define SHELF_LENT    3   /* Somebody has the book already */

typedef struct Book Book;
typedef struct Shelf Shelf;

struct Book {
  char *zTitle;          /* Title of the book */
  char *zAuthor;         /* Who wrote it */
  char zReader[40];      /* Who has borrowed it, or "" */
  Book *pNext;           /* The next book, by its title */
};

struct Shelf {
  Book *pFirst;          /* The first book, or NULL if there is none */
  int nBook;             /* How many books there are */
  int nLent;             /* How many of them are lent */
};

/*
** Make a copy of a string.  Return NULL if there is no memory left.
*/
static char *shelfCopy(const char *zText){
  size_t n;
  char *zNew;
  if( zText==0 ) return 0;
  n = strlen(zText) + 1;
  zNew = malloc(n);
  if( zNew ){
    memcpy(zNew, zText, n);
  }
  return zNew;
}

/*
** Find the book of this title.  Return NULL if it is not on the shelf.
**
** The titles are in order.  So the search ends as soon as a title comes
** after the one that is looked for.
*/
static Book *shelfFind(Shelf *p, const char *zTitle){
  Book *pBook;
  for(pBook=p->pFirst; pBook; pBook=pBook->pNext){
    int c = strcmp(pBook->zTitle, zTitle);
    if( c==0 ) return pBook;
    if( c>0 ) break;
  }
  return 0;
}

/*
** Put a new book on the shelf.  A title that is there already stays as it
** is, and nothing is added.
*/
int shelfAdd(Shelf *p, const char *zTitle, const char *zAuthor){
  Book *pNew;
  Book **pp;
  if( shelfFind(p, zTitle) ){
    return SHELF_OK;
  }
  pNew = malloc(sizeof(*pNew));
  if( pNew==0 ){
    return SHELF_NOMEM;
  }
  memset(pNew, 0, sizeof(*pNew));
  pNew->zTitle = shelfCopy(zTitle);
  pNew->zAuthor = shelfCopy(zAuthor);
  if( pNew->zTitle==0 || pNew->zAuthor==0 ){
    free(pNew->zTitle);
    free(pNew->zAuthor);
    free(pNew);
    return SHELF_NOMEM;
  }
  /* Look for the first title that comes after the new one. */
  for(pp=&p->pFirst; *pp; pp=&(*pp)->pNext){
    if( strcmp((*pp)->zTitle, zTitle)>0 ) break;
  }
  pNew->pNext = *pp;
  *pp = pNew;
  p->nBook++;
  return SHELF_OK;
}

/*
** Lend a book to a reader.
*/
int shelfLend(Shelf *p, const char *zTitle, const char *zReader){
  Book *pBook = shelfFind(p, zTitle);
  if( pBook==0 ){
    return SHELF_MISSING;
  }
  if( pBook->zReader[0] ){
    if( strcmp(pBook->zReader, zReader)==0 ){
      return SHELF_OK;       /* The same reader asks again */
    }
    return SHELF_LENT;
  }
  strncpy(pBook->zReader, zReader, sizeof(pBook->zReader)-1);
  p->nLent++;
  return SHELF_OK;
}

/*
** Take a book back.  A book that nobody has borrowed stays where it is.
*/
int shelfReturn(Shelf *p, const char *zTitle){
  Book *pBook = shelfFind(p, zTitle);
  if( pBook==0 ){
    return SHELF_MISSING;
  }
  if( pBook->zReader[0] ){
    pBook->zReader[0] = 0;
    p->nLent--;
  }
  return SHELF_OK;
}

/*
** Print all books, and who has them.
*/
void shelfPrint(Shelf *p, FILE *out){
  Book *pBook;
  int i = 0;
  for(pBook=p->pFirst; pBook; pBook=pBook->pNext){
    i++;
    fprintf(out, "%3d. %s, by %s", i, pBook->zTitle, pBook->zAuthor);
    if( pBook->zReader[0] ){
      fprintf(out, " (lent to %s)", pBook->zReader);
    }
    fprintf(out, "\n");
  }
  if( p->nBook==0 ){
    fprintf(out, "The shelf is empty.\n");
  }else if( p->nLent==p->nBook ){
    fprintf(out, "All books are lent.\n");
  }
}

/*
** What went wrong, in words.
*/
const char *shelfMessage(int rc){
  switch( rc ){
    case SHELF_OK:      return "all is well";
    case SHELF_NOMEM:   return "there is no memory left";
    case SHELF_MISSING: return "no book has this title";
    case SHELF_LENT:    return "somebody has the book already";
    default:            return "this is no code of a shelf";
  }
}

/*
** Free all books.
*/
void shelfClose(Shelf *p){
  Book *pBook = p->pFirst;
  while( pBook ){
    Book *pNext = pBook->pNext;
    free(pBook->zTitle);
    free(pBook->zAuthor);
    free(pBook);
    pBook = pNext;
  }
  memset(p, 0, sizeof(*p));
}

int main(void){
  Shelf shelf = { 0, 0, 0 };
  int rc = shelfAdd(&shelf, "War and Peace", "Leo Tolstoy");
  if( rc==SHELF_OK ){
    rc = shelfAdd(&shelf, "Alice's Adventures in Wonderland", "Lewis Carroll");
  }
  if( rc==SHELF_OK ){
    rc = shelfLend(&shelf, "War and Peace", "Natasha");
    if( rc==SHELF_LENT ){
      printf("Somebody reads it.\n");
    }
  }
  if( rc!=SHELF_OK ){
    fprintf(stderr, "error: %s\n", shelfMessage(rc));
  }
  shelfPrint(&shelf, stdout);
  shelfClose(&shelf);
  return rc!=SHELF_OK;
}
