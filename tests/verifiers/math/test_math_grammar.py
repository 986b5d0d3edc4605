r"""What each construction of the grammar is read as: trees as lists in brackets; ``!`` where a text is no answer."""

import pytest

from grpo_verifiers.math.grammar.cursor import ParseError
from grpo_verifiers.math.grammar.parser import parse

READ = r"""
１２＋3 => (+ 12 3) ;; ｘ＝5 => (rel (x 5) =) ;; x<1 \cup x>3 => (or (rel (x 1) <) (rel (x 3) >)) ;; x>1 \cap x<3 => (and (rel (x 1) >) (rel (x 3) <)) ;; 1.5_2 => ! ;; xy sin x => (* x y (f sin (x))) ;; ab log c => (* a b (log None c)) ;; 0b101 => (base 101 2) ;; 0x1F => (base 1f 16) ;; 0o17 => (base 17 8) ;; f^\prime => f'
f^{\prime}(x) => (f f' (x)) ;; 5 \text{ m}^x => ! ;; 5 \text{ m}^{-2} => (unit 5 m^-2) ;; 5 \text{ m}^{2 => ! ;; 5 \frac{m}{s^2} => (* 5 (/ m (^ s 2)))
5 m/s^2 => (/ (* 5 m) (^ s 2)) ;; 5\text{ m}\cdot\text{s} => (unit 5 m   s) ;; 5\frac{\text{m}}{\text{s}} => (unit 5 (m)/(s)) ;; 5\,\mathrm{km/h} => (unit 5 km/h)
5 m^2 => (* 5 (^ m 2)) ;; 5 \text{ ft}^3 => (unit 5 ft^3) ;; 5\text{ square feet} => (unit 5 square feet) ;; 0.1\overline{6} => (/ 1 6) ;; 0.\overline{142857} => (/ 1 7)
P(X>2) => (f P ((rel (X 2) >))) ;; P(A \cap B) => (f P ((cap A B))) ;; a_{i,j} => a_{i,j} ;; x_{\text{max}} => x_max ;; \mathbb{Z}_{>0} => mathbb Z_>0
\mathbb{Z}^{+} => mathbb Z^+ ;; \mathbb{R}^* => mathbb R^* ;; \mathbb{R}_{\ge 0} => mathbb R_>=0 ;; \bar{x} => bar x ;; f'(2) => (f f' (2))
(x,y)\in A => (rel ((paren x y) A) in) ;; x:=2 => (rel (x 2) =) ;; a\ast b => (* a b) ;; 2\ \text{or}\ 3 => (list 2 3) ;; x\in(1,2) => (rel (x (paren 1 2)) in)
x \in [1,2] \cup (3,4) => (rel (x (cup (span [ 1 2 ]) (paren 3 4))) in) ;; x=1 \lor x=2 => (list (rel (x 1) =) (rel (x 2) =))
x>1 \land x<2 => (and (rel (x 1) >) (rel (x 2) <)) ;; (1) => 1 ;; \{1\} => (set 1) ;; \{(1,2),(3,4)\} => (set (paren 1 2) (paren 3 4))
\{x^2 \mid x\in\mathbb{Z}\} => (builder (^ x 2) (rel (x mathbb Z) in)) ;; \{x\in\mathbb{R} : x>1\} => (builder (rel (x mathbb R) in) (rel (x 1) >))
(x-1)(x+1) => (* (+ x (- 1)) (+ x 1)) ;; ((1)) => 1 ;; n! = 2 => (rel ((! n) 2) =) ;; 7^{-1} \pmod 5 => (f mod ((^ 7 (- 1)) 5))
x\equiv 2 \bmod 5 => (rel (x (f mod (2 5))) =) ;; y = 3x - 2 => (rel (y (+ (* 3 x) (- 2))) =) ;; x = \pm 2 => (rel (x (pm None 2)) =) ;; -\frac{1}{2} => (- (/ 1 2))
\frac{-1}{2} => (/ (- 1) 2) ;; \frac12x^2 => (* (/ 1 2) (^ x 2)) ;; 3\%+2\% => (+ (% 3) (% 2)) ;; \$1{,}000.50 => (currency 2001/2~2) ;; 5\text{ dollars} => (unit 5 dollars)
10^{-3}\text{ m} => (unit (^ 10 (- 3)) m) ;; \text{A and B} => (list A B) ;; A, B, C => (list A B C) ;; \text{(B)} => B ;; x\sin x => (* x (f sin (x)))
2\sin x\cos x => (* 2 (f sin (x)) (f cos (x))) ;; \log_{10}(100) => (log 10 100) ;; \log_{2}{8} => (log 2 8) ;; \log^2 x => ! ;; \arcsin(1) => (f arcsin (1))
\sin^{-1}(1) => (f arcsin (1)) ;; \tan^{-1}\frac12 => (f arctan ((/ 1 2))) ;; \ln(2)/3 => (/ (f ln (2)) 3) ;; |x|<2 => (rel ((abs x) 2) <)
||x|-1| => (abs (+ (abs x) (- 1))) ;; |a+b||c| => (* (abs (+ a b)) (abs c)) ;; |\frac12| => (abs (/ 1 2)) ;; \left|\frac{x}{2}\right| => (abs (/ x 2))
\left(\frac12\right)^2 => (^ (/ 1 2) 2) ;; \lfloor -1.5 \rfloor + 1 => (+ (f floor ((- 3/2~1))) 1) ;; \sqrt[n]{2} => (root 2 n) ;; \sqrt{\frac{1}{2}} => (root (/ 1 2) 2)
\frac{\sqrt3}{2} => (/ (root 3 2) 2) ;; 1+\frac{1}{1+\frac12} => (+ 1 (/ 1 (+ 1 (/ 1 2)))) ;; e^x => (^ e x) ;; e^{-x}y => (* (^ e (- x)) y) ;; 2^{\frac12} => (^ 2 (/ 1 2))
x^{1/2} => (^ x (/ 1 2)) ;; 2^{n+1}-1 => (+ (^ 2 (+ n 1)) (- 1)) ;; (a+b)^2/c => (/ (^ (+ a b) 2) c) ;; a/b/c => (/ (/ a b) c) ;; a/bc => (* (/ a b) c)
1/2x => (* (/ 1 2) x) ;; 1/(2x) => (/ 1 (* 2 x)) ;; 2+3-4*5/6 => (+ 2 3 (- (/ (* 4 5) 6))) ;; -2--3 => (+ (- 2) (- (- 3))) ;; +5+-4 => (+ 5 (- 4))
1 \pm \sqrt2 => (pm 1 (root 2 2)) ;; \pm 3 => (pm None 3) ;; \mp x => (pm None x) ;; 2^{-3} => (^ 2 (- 3)) ;; 2^10 => (^ 2 10) ;; 2^{x+1}y => (* (^ 2 (+ x 1)) y)
x_1^2 => (^ x_1 2) ;; x_{12} => x_12 ;; a_{n+1} => a_{+1+n} ;; x'+x'' => (+ x' x'') ;; 5! => (! 5) ;; n!^2 => (^ (! n) 2) ;; (n!)! => (! (! n)) ;; 50\% => (% 50)
5 percent => (% 5) ;; 90^\circ => (deg 90) ;; 90^{\circ} => (deg 90) ;; 90^o => (deg 90) ;; 1\frac12 => (mixed 1 (/ 1 2)) ;; 1 \frac{1}{2} => (mixed 1 (/ 1 2))
1 1/2 => (mixed 1 (/ 1 2)) ;; 3\frac{5}{4} => (* 3 (/ 5 4)) ;; x\frac12 => (* x (/ 1 2)) ;; 2\frac12\% => (% (mixed 2 (/ 1 2))) ;; \frac12 3 => !
\frac{1}{2}x => (* (/ 1 2) x) ;; \frac34 => (/ 3 4) ;; \sqrt{2} => (root 2 2) ;; \sqrt2x => (* (root 2 2) x) ;; \sqrt[3]{x+1} => (root (+ x 1) 3) ;; \sqrt(4) => (root 4 2)
\binom{5}{2} => (binom 5 2) ;; \log x => (log None x) ;; \log_2 8 => (log 2 8) ;; \lg 100 => (log 10 100) ;; \ln x^2 => (f ln ((^ x 2))) ;; \sin x => (f sin (x))
\sin 2x => (f sin ((* 2 x))) ;; \sin^2 x => (^ (f sin (x)) 2) ;; \sin^{-1} x => (f arcsin (x)) ;; \sin(x)+1 => (+ (f sin (x)) 1) ;; \sin(2\pi x) => (f sin ((* 2 pi x)))
\sin -x => (f sin ((- x))) ;; \max(1,2) => (f max (1 2)) ;; \gcd(4,6) => (f gcd (4 6)) ;; \lfloor 7/2 \rfloor => (f floor ((/ 7 2))) ;; \lceil x \rceil => (f ceil (x))
\langle 1,2 \rangle => (paren 1 2) ;; |x-1| => (abs (+ x (- 1))) ;; |x||y| => (* (abs x) (abs y)) ;; 2|x| => (* 2 (abs x)) ;; |-3|+1 => (+ (abs (- 3)) 1)
(1,2) => (paren 1 2) ;; [1,2] => (span [ 1 2 ]) ;; (1,2] => (span ( 1 2 ]) ;; ]1,2[ => (paren 1 2) ;; [1;2) => (span [ 1 2 )) ;; \{1,2\} => (set 1 2) ;; \{\} => (set)
\emptyset => (set) ;; \{x \mid x>3\} => (builder x (rel (x 3) >)) ;; \{x : x>3, x<5\} => (builder x (and (rel (x 3) >) (rel (x 5) <)))
x \in \{1,2\} => (rel (x (set 1 2)) in) ;; x \notin \mathbb{Z} => (rel (x mathbb Z) notin) ;; x \not\in A => (rel (x A) notin) ;; x \not= 2 => (rel (x 2) !=)
x \ne 2 => (rel (x 2) !=) ;; A \cup B \cap C => (cap (cup A B) C) ;; A \setminus B => (minus A B) ;; A \cup B \cup C => (cup A B C) ;; 1:2 => (ratio 1 2)
1:2:3 => (ratio 1 2 3) ;; x<1 \text{ or } x>3 => (or (rel (x 1) <) (rel (x 3) >)) ;; x=1 \text{ and } y=2 => (list (rel (x 1) =) (rel (y 2) =))
x=1, y=2 => (list (rel (x 1) =) (rel (y 2) =)) ;; 1, 2, 3 => (list 1 2 3) ;; 1 \text{ and } 2 => (list 1 2) ;; 1<x<2 => (rel (1 x 2) < <) ;; 1 \le x < 2 => (rel (1 x 2) <= <)
x \ge 3 => (rel (x 3) >=) ;; x \approx 3 => (rel (x 3) ~=) ;; 7 \equiv 2 \pmod 5 => (rel (7 (f mod (2 5))) =) ;; 7 \bmod 5 => (f mod (7 5)) ;; 7 mod 5 => (f mod (7 5))
7 (mod 5) => (f mod (7 5)) ;; f(x)=2 => (rel ((f f (x)) 2) =) ;; f^{-1}(2) => (f f^{-1} (2)) ;; P(A|B) => (f P (A|B)) ;; x(y+1) => (* x (+ y 1)) ;; 2(3+4) => (* 2 (+ 3 4))
(2)(3) => (* 2 3) ;; g (x) => (* g x) ;; AB => (text AB) ;; abc => (* a b c) ;; \overline{AB} => bar AB ;; \vec{v} => vec v ;; \mathbb{R}^+ => mathbb R^+
\mathbb{R} => mathbb R ;; \angle ABC => angle ABC ;; \alpha\beta => (* alpha beta) ;; \Pr(A) => (f P (A)) ;; \pi r^2 => (* pi (^ r 2)) ;; 2\pi => (* 2 pi)
2 \cdot 3 => (* 2 3) ;; 2 \times 10^{5} => (* 2 (^ 10 5)) ;; 2 \div 3 => (/ 2 3) ;; \$5 => (currency 5) ;; 5 cm => (unit 5 cm) ;; 5 \text{ cm} => (unit 5 cm)
5 \text{ m/s} => (unit 5 m/s) ;; 2\pi - 4 \text{ cm} => (unit (+ (* 2 pi) (- 4)) cm) ;; 1 hour 30 minutes => (list (unit 1 hour) (unit 30 minutes))
3x \text{ apples} => (unit (* 3 x) apples) ;; \text{no solution} => (text no solution) ;; \text{infinity} => inf ;; \infty => inf ;; -\infty => (- inf) ;; +\infty => inf
101_2 => (base 101 2) ;; FF_{16} => (base ff 16) ;; 12_{\text{ten}} => (base 12 10) ;; 1{,}000 => 1000 ;; 1,000 => 1000 ;; 0.\overline{3} => (/ 1 3) ;; 0.3\ldots => !
.5 => 1/2~1 ;; 5. => 5 ;; 1e5 => ! ;; 12.50 => 25/2~2 ;; \begin{pmatrix}1&2\\3&4\end{pmatrix} => (matrix (row 1 2) (row 3 4))
\begin{vmatrix}1&2\\3&4\end{vmatrix} => (f det ((matrix (row 1 2) (row 3 4)))) ;; \begin{cases}x=1\\y=2\end{cases} => (cases (row (rel (x 1) =)) (row (rel (y 2) =)))
\begin{cases}x&x>0\\-x&\text{otherwise}\end{cases} => (cases (row x (rel (x 0) >)) (row (- x) (text otherwise)))
\begin{aligned}x&=1\\y&=2\end{aligned} => (cases (row (rel (x 1) =)) (row (rel (y 2) =))) ;; \begin{array}{cc}1&2\end{array} => (matrix (row 1 2))
\left\{\begin{array}{l}x=1\\y=2\end{array}\right. => (cases (row (rel (x 1) =)) (row (rel (y 2) =))) ;; \therefore x=2 => (rel (x 2) =) ;; = 5 => 5 ;; the answer is 5 => !
\text{so } 5 => 5 ;; \frac{dy}{dx} => (/ (* d y) (* d x)) ;; e^{i\pi} => (^ e (* i pi)) ;; \exp(2) => (f exp (2)) ;; \operatorname{lcm}(4,6) => (f lcm (4 6))
\dfrac{1}{2} => (/ 1 2) ;; \tfrac12 => (/ 1 2) ;; \mathrm{e}^2 => (^ e 2) ;; \mathbf{i}+\mathbf{j} => (+ i j) ;; \hat{i} => hat i ;; \underline{5} => 5 ;; x \to 2 => !
1 \Rightarrow 2 => ! ;; 2 3 => ! ;; 3!! => ! ;; \frac{1}{2 => ! ;; (1,2 => ! ;; [1] => 1 ;; (1] => ! ;; () => ! ;; 2+ => ! ;; x^{'} => x' ;; y'' => y''
\sin^{-2} x => (^ (f sin (x)) (- 2)) ;; \foo => ! ;; ||1|| => (abs (abs 1)) ;; 1_{37} => ! ;; 5_2 => ! ;; {5} => 5 ;; a,b and c => (list a b c)
x=1 or 2 => (list (rel (x 1) =) 2) ;; \text{Yes} => (text Yes) ;; (A) => A ;; 5 and => ! ;; 10 \text{ or } 12 => (list 10 12) ;; a:b=2 => (rel ((ratio a b) 2) =)
\sqrt{x}^2 => (^ (root x 2) 2) ;; -x^2 => (- (^ x 2)) ;; (-x)^2 => (^ (- x) 2) ;; 2^3^2 => (^ (^ 2 3) 2) ;; \frac{2}{3}^2 => (^ (/ 2 3) 2) ;; 5^{th} => (^ 5 (* t h))
3\times(2+1) => (* 3 (+ 2 1)) ;; x*y**2 => (* x (^ y 2)) ;; 2x^{3}y => (* 2 (^ x 3) y) ;; 3a2 => ! ;; \tan\theta => (f tan (theta)) ;; \cos 30^\circ => (f cos ((deg 30)))
\sin\frac{\pi}{6} => (f sin ((/ pi 6))) ;; ln 2 => (f ln (2)) ;; sin x cos x => (* (f sin (x)) (f cos (x))) ;; sqrt(2)/2 => (/ (root 2 2) 2) ;; sqrt 2 => (root 2 2)
pi/2 => (/ pi 2) ;; oo => inf ;; (-oo, 3) => (paren (- inf) 3) ;; \Delta x => (* Delta x) ;; x\% => (% x) ;; 10\,000 => 10000 ;; 10~000 => ! ;; 5\;cm^2 => (unit 5 cm^2)
\frac{5 \text{ m}}{2} => (/ (unit 5 m) 2) ;; £5 => (currency 5 pounds) ;; 5€ => ! ;; ½ => (/ 1 2) ;; x² => (^ x 2) ;; √2 => (root 2 2) ;; ≤ => ! ;; x≤3 => (rel (x 3) <=)
∞ => inf ;; π => pi
"""


def spelled(node):
    if not isinstance(node, tuple):
        return str(node)
    if node[:1] == ("n",) and len(node) == 3:
        return f"{node[1]}" if node[2] is None else f"{node[1]}~{node[2]}"
    return node[1] if node[:1] == ("v",) and len(node) == 2 else f"({' '.join(map(spelled, node))})"


@pytest.mark.parametrize("row", READ.strip().splitlines())
def test_each_construction_has_its_tree(row):
    for text, tree in (case.split(" => ") for case in row.split(" ;; ")):
        if tree == "!":
            with pytest.raises(ParseError):
                parse(text)
        else:
            assert spelled(parse(text)) == tree, text
